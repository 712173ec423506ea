"""What goes wrong while a run is on: how it is noticed, what is decided, and what brings the run back."""
