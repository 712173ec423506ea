"""Figures of a run for other programs: a table, a page with plots, and metrics for a monitor."""
