"""One device: what its kind can do, how much it holds, and how it computes a slice."""
