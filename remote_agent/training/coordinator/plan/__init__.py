"""Decides places and shares: where actors run, and how much each device computes."""
