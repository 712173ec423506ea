"""Takeover: a new coordinator takes over the workers and servers of a killed one."""
