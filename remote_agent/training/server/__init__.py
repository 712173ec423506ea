"""The server: an actor that holds a shard of the parameters, sums gradients and makes the optimizer's step."""
