"""The coordinator's part of validation: the samples, the time, and the consequences of the metrics."""
