"""Sequences of tasks: the public path of `conceptors.experiments.scenarios`."""

from conceptors.experiments.scenarios import SCENARIOS, Scenario, Split, Task, build, union

__all__ = ["SCENARIOS", "Scenario", "Split", "Task", "build", "union"]
