"""A run's processes as Ray actors: starts them, pings them, and finds out why they died."""
