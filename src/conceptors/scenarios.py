"""Sequences of tasks: the public path of `conceptors.experiments.scenarios`."""

from conceptors.experiments.scenarios.base import Scenario, Split, Task, union
from conceptors.experiments.scenarios.images import SCENARIOS, build

__all__ = ["SCENARIOS", "Scenario", "Split", "Task", "build", "union"]
