"""How fast each device is, and what follows for its share of a step's batch."""
