"""Runs on a simulated clock and network: the engine's own code, many random faults, one seed each."""
