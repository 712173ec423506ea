"""What is decided before a run: speeds, shares, shard sites, predicted times. Pure; laptop and agent share it."""
