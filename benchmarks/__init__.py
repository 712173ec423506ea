"""Each figure that the README quotes, as a command that anyone can run."""
