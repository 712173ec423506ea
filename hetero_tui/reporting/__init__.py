"""A run beyond the terminal: its figures as a table, as a page with plots, and as metrics for a monitor."""
