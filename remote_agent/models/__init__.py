"""Support for large models: the blocks at which a model is cut, and its parts on several devices."""
