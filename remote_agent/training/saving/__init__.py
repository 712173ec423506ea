"""What outlives a process: checkpoints, optimizers' state, the run's folder on other hosts; and going on from it."""
