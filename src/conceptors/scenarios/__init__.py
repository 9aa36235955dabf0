"""Task sequences by name."""

from conceptors.scenarios.base import Scenario, Split, Task, union
from conceptors.scenarios.images import SCENARIOS, build

__all__ = ["SCENARIOS", "Scenario", "Split", "Task", "build", "union"]
