"""What a run tells while it is on: to the user's callbacks and loggers, and as a line of progress in a script."""
