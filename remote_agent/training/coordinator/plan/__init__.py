"""What the coordinator decides about places and shares: who runs where, holds which shard, computes how much."""
