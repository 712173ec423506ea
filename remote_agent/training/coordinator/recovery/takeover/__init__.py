"""A new coordinator takes over the workers and servers of one that was killed."""
