"""Decisions before a run: speeds, shares, shard sites, predicted times. Pure; laptop and agent share it."""
