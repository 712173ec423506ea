"""Keeps this machine in its cluster: Ray's node, its supervisor, and the cluster's processes here."""
