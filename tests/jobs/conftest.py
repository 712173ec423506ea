"""The ready jobs are tested by themselves and on the cluster of tests/training."""
