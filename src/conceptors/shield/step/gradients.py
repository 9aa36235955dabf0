"""Replace gradients by projected copies during a step.

The user's gradients are stored during the step, and restored after it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.shield.blocks import is_sharded, shard_like


class Gradients:
    """Copies of the gradients of some parameters, in memory that does not move.

    Attributes:
        copies: a parameter and the copy of its gradient, by the parameter's id. For a sharded
            parameter, the copy has the shape of its local part or of the whole.
        given: lists of parameters whose gradients are replaced by the copies: all of a list, or
            none if no parameter of the list has a gradient.
    """

    def __init__(
        self,
        copies: dict[int, tuple[nn.Parameter, Tensor]],
        given: list[list[nn.Parameter]],
        idle: Collection[int] = (),
    ) -> None:
        self.copies, self.given, self._idle = copies, given, idle
        self._aside: list[tuple[nn.Parameter, Tensor | None, Tensor]] = []  # user's, copy
        self._versions: list[int] = []  # of the copies, when the optimizer received them

    def of(self, parameter: nn.Parameter) -> Tensor:
        """Return the copy of a parameter's gradient."""
        return self.copies[id(parameter)][1]

    def take(self, *, all_of_them: bool = False) -> None:
        """Copy the gradients, all or only those that are projected; None counts as zero."""
        copies, gradients = [], []
        for key, (parameter, copy) in self.copies.items():
            if key in self._idle and not all_of_them:
                continue
            gradient = parameter.grad
            if gradient is None:
                copy.zero_()
            elif gradient.layout == torch.sparse_coo:
                copy.copy_(gradient.to_dense())
            else:
                copies.append(copy)
                gradients.append(_plain(gradient, copy.shape))
        if copies:
            torch._foreach_copy_(copies, gradients)

    def give(self) -> None:
        """Replace the user's gradients by the copies."""
        for parameters in self.given:
            if all(parameter.grad is None for parameter in parameters):
                continue
            for parameter in parameters:
                gradient = parameter.grad
                like = parameter.data if gradient is None else gradient
                copy = _like(self.of(parameter), like)
                self._aside.append((parameter, gradient, copy))
                parameter.grad = copy
        self.settle()

    def settle(self) -> None:
        """Record the versions of the copies; later changes come from the optimizer or the user."""
        self._versions = [copy._version for _, _, copy in self._aside]

    def give_back(self, *, late: bool = False) -> None:
        """Restore the user's gradients, unless the user has replaced them.

        `late`: whether a step may have failed. If the user has changed the copies since then, as
        with `zero_grad(set_to_none=False)` and a backward pass, they are the user's gradients.
        """
        for (parameter, gradient, copy), version in zip(self._aside, self._versions):
            if parameter.grad is copy:
                is_changed = late and copy._version != version
                parameter.grad = copy.clone() if is_changed else gradient
        self._aside = []


def _plain(gradient: Any, shape: torch.Size) -> Tensor:
    """Return a gradient as a plain tensor: its local part, or the whole."""
    if not is_sharded(gradient):
        return gradient  # type: ignore[no-any-return]
    local: Tensor = gradient.to_local()
    return local if local.shape == shape else gradient.full_tensor()


def _like(copy: Tensor, gradient: Any) -> Tensor:
    """Convert a copy to the layout of a gradient."""
    if gradient.layout == torch.sparse_coo:
        places = gradient.coalesce().indices()
        return torch.sparse_coo_tensor(places, copy[places[0]], copy.shape, check_invariants=False)
    if not is_sharded(gradient):
        return copy
    if copy.shape == gradient.to_local().shape:
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            copy,
            gradient.device_mesh,
            gradient.placements,
            shape=gradient.shape,
            stride=gradient.stride(),
        )
    return shard_like(copy, gradient)
