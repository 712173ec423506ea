"""Thin widgets: each shows lines that a pure function made, and redraws only the lines that changed."""
