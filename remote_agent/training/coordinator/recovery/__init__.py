"""Recovery from failures during a run: detecting them, deciding about them, and restoring the run."""
