"""A network for each task: nothing is forgotten, and nothing is shared."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.func import functional_call

from conceptors.experiments.methods.base import Learner


class Separate(Learner):
    """Every task trains its own copy of the same new network; testing needs the task ID.

    Methods with per-task parameters should store fewer numbers than this, or do better. A task
    that was not learned yet is tested with the network that was learned last.
    """

    name = "separate"
    about = "one network per task, needs the task ID at test time"
    needs_task_label = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.settings.norms != "batch":
            raise ValueError("norms=first fixes one task's statistics for all. Set norms=batch")
        self._new = self._weights()
        self._learned: dict[int, dict[str, Tensor]] = {}  # by task

    def start_task(self, number: int) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.data.copy_(self._new[name])

    def end_task(self, number: int) -> None:
        self._learned[number] = self._weights()

    def outputs(self, x: Tensor, number: int) -> Tensor:
        out: Tensor = functional_call(self.model, self._learned.get(number, {}), (x,))
        return out

    def stored_numbers(self) -> int:
        """All networks but one; the initial weights can be drawn again."""
        return sum(p.numel() for p in self.model.parameters()) * (len(self._learned) - 1)

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}
