"""Where workers and shards of the parameter server run, and how fast the links between them are."""
