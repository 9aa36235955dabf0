"""Experiments: scenarios, methods, seeds, and results on disk."""
