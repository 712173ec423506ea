"""The coordinator: the process on the head host that plans a run, issues its steps and recovers from failures."""
