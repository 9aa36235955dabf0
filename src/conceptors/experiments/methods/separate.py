"""A network for each task: nothing is forgotten, and nothing is shared."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from conceptors.experiments.methods.base import Learner


class Separate(Learner):
    """Every task begins with the same new network and keeps it; testing needs to know the task.

    What methods with parts of their own for each task are to be held against: these parts should be
    less than a network, or better.
    """

    name: ClassVar[str] = "separate"
    about: ClassVar[str] = "a network for each task, told which one when tested"
    needs_task_label: ClassVar[bool] = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._new = self._weights()
        self._learned: list[dict[str, Tensor]] = []  # by task

    def start_task(self, number: int) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self._new[name])

    def end_task(self, number: int) -> None:
        self._learned.append(self._weights())

    def outputs(self, x: Tensor, number: int) -> Tensor:
        if number >= len(self._learned):  # the one that is being learned
            return super().outputs(x, number)
        out: Tensor = functional_call(self.model, self._learned[number], (x,))
        return out

    def stored_numbers(self) -> list[int]:
        """All networks but one."""
        each = sum(p.numel() for p in self.model.parameters()) // len(self.seeds)
        return [each * (len(self._learned) - 1)] * len(self.seeds)

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}
