"""A run's processes as Ray actors: started, also while the run is on; pinged; and what they died of."""
