"""Records a session in one file of limited size, and replays the file without a network."""
