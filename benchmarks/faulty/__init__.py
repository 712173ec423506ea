"""What :mod:`benchmarks.faults` is made of: the job, the stage, the faults' rows, the random schedule, the figures."""
