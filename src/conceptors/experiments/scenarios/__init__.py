"""Sequences of tasks: what they are (base), all of them by name (images), and their data."""
