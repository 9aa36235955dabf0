"""Callbacks and plugins for training frameworks; each module imports only its own framework."""
