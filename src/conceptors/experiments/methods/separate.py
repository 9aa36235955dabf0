"""A network for each task: nothing is forgotten, and nothing is shared."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from conceptors.experiments.methods.base import Learner


class Separate(Learner):
    """Every task begins with the same new network and keeps it; testing needs to know the task.

    Methods with parts of their own for each task are to be held against it: these should take fewer
    numbers than a network for each task, or do better. A task that was not learned yet is tested
    with the network that was learned last.
    """

    name: ClassVar[str] = "separate"
    about: ClassVar[str] = "a network for each task, told which one when tested"
    needs_task_label: ClassVar[bool] = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.settings.norms != "batch":
            raise ValueError(
                f"norms={self.settings.norms} holds statistics of one task for all, which networks "
                f"that share nothing cannot have; use norms=batch"
            )
        self._new = self._weights()
        self._learned: dict[int, dict[str, Tensor]] = {}  # by task

    def start_task(self, number: int) -> None:
        self._learned.pop(number, None)  # it may be learned again
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self._new[name])

    def end_task(self, number: int) -> None:
        self._learned[number] = self._weights()

    def outputs(self, x: Tensor, number: int) -> Tensor:
        if number not in self._learned:
            return super().outputs(x, number)
        out: Tensor = functional_call(self.model, self._learned[number], (x,))
        return out

    def stored_numbers(self) -> list[int]:
        """All networks but one; how they begin can be drawn again."""
        each = sum(p.numel() for p in self.model.parameters()) // len(self.seeds)
        return [each * (len(self._learned) - 1)] * len(self.seeds)

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}
