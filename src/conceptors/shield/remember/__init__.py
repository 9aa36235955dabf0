"""Compute the second moments of all layers' inputs in one pass over a task's data."""
