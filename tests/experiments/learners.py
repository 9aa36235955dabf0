"""Learners of a small scenario."""

from __future__ import annotations

from typing import Any

import torch

from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, parse_settings
from experiments.tasks import small

CPU = torch.device("cpu")
TINY = {"hidden": "5", "batch": 8, "steps": 12, "check_every": 6, "rate": 0.2}


def learner(
    method: str, seeds: list[int], *, tasks: int = 2, n: int = 60, inputs: int = 6, **settings: Any
) -> Any:
    kind = METHODS[method]
    parsed = parse_settings(kind.settings_type, {**TINY, **settings})
    return kind(small(seeds, tasks=tasks, inputs=inputs, n=n), parsed, CPU, quiet)
