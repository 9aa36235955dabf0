"""Trainers that people already use; each module here needs its own framework, and only that."""
