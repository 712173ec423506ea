"""The worker's part: one actor per device, and what it does in a step under each strategy."""
