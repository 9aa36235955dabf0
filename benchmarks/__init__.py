"""The scripts behind every number in docs/ and results/: run `python -m benchmarks.NAME --help`.

They use public names of `conceptors` only, and are not part of the wheel.
"""
