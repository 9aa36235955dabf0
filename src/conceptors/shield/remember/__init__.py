"""Remembering a task: one pass that collects second moments of what enters every layer."""
