"""Words of small runs."""

from __future__ import annotations

QUICK = ["--set", "hidden=6", "--set", "steps=8", "--set", "batch=8"]
RUN = ["run", "disjoint-mnist", "--device", "cpu", *QUICK]
