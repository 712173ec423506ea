"""The cases of ``benchmarks.compatibility``: models, losses, data and optimizers as users bring them."""
