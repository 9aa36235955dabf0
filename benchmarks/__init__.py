"""Timings and memory against older ways of computing the same. Run them with `make bench`."""
