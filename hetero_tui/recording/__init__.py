"""What a session saw, kept in one bounded file, and the same file seen again without a network."""
