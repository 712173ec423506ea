"""What keeps this machine in its cluster: Ray's node and its supervisor, and the processes of the cluster here."""
