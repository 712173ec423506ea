"""The worker: one actor for each device, and its part of a step with each strategy."""
