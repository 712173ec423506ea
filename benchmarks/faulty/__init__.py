"""Parts of :mod:`benchmarks.faults`: the job, the lab with our cluster, the faults, and stalls out of events."""
