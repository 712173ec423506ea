"""How many bytes a codec writes for a number."""

BYTES_A_NUMBER = {"fp32": 4.0, "bf16": 2.0, "int8": 1 + 4 / 512}
"""Of each codec that a plan may choose; ``topk`` and a job's own have to be asked for."""

LOSSY = tuple(codec for codec in BYTES_A_NUMBER if codec != "fp32")
"""Codecs that are measured, and tried where the user allows inexact ways and fixed none."""
