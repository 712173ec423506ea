"""The coordinator's part of validation: which samples, when, and what follows from the figures."""
