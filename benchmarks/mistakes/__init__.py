"""Mistakes that users make, each as they would make it."""
