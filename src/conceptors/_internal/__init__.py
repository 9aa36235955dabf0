"""Helpers that all packages share: checks, files, precision, CUDA graphs."""
