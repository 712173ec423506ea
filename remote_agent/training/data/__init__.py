"""Samples: the user's data, their order, their way to the workers, and the record of those that counted."""
