"""What large models are made of: the blocks that a model is cut at, and its parts on several devices."""
