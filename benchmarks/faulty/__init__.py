"""What :mod:`benchmarks.faults` is made of: job, stage, the rows of the table, random schedules, ours and torchft."""
