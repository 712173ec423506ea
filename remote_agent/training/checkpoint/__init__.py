"""Checkpoints: what is in them, how they are written, and what optimizers remember."""
