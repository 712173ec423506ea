"""Samples: what the user gives, in which order they are used, how they reach the workers, and which ones counted."""
