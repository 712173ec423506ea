"""Reports a run's progress to the user's callbacks and loggers, and as a line in a script."""
