"""Gradients as the optimizer is given them: the shield's own copies, projected.

The user's gradients wait aside while the optimizer works and are back after the step.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.shield.blocks import is_sharded, shard_like


class Gradients:
    """Copies of the gradients of some parameters, in memory that stays where it is.

    Attributes:
        copies: a parameter and its copy, by the parameter's id; of its own shape (if it is
            sharded, of its local part or all of it).
        idle: ids of those that are only looked at.
        given: parameters whose gradients the optimizer is given in our form: of all in a row, or
            of none if none of them has any.
    """

    def __init__(
        self,
        copies: dict[int, tuple[nn.Parameter, Tensor]],
        given: list[list[nn.Parameter]],
        idle: Collection[int] = (),
    ) -> None:
        self.copies, self.given, self._idle = copies, given, idle
        self._aside: list[tuple[nn.Parameter, Tensor | None, Tensor]] = []  # the user's, and ours
        self._versions: list[int] = []  # of ours, as the optimizer was given them

    def of(self, parameter: nn.Parameter) -> Tensor:
        return self.copies[id(parameter)][1]

    def take(self, *, all_of_them: bool = False) -> None:
        """Copy the gradients, all or those that are projected; none counts as zero."""
        copies, gradients = [], []
        for number, (parameter, copy) in self.copies.items():
            if number in self._idle and not all_of_them:
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
        """Put our copies in place of the user's gradients, where there are any."""
        for row in self.given:
            if all(parameter.grad is None for parameter in row):
                continue
            for parameter in row:
                gradient = parameter.grad
                like = parameter.data if gradient is None else gradient
                ours = _like(self.of(parameter), like)
                self._aside.append((parameter, gradient, ours))
                parameter.grad = ours
        self.settle()

    def settle(self) -> None:
        """What changes our copies from now on is the optimizer, or comes after a failed step."""
        self._versions = [ours._version for _, _, ours in self._aside]

    def give_back(self, *, late: bool = False) -> None:
        """The user's gradients again, unless they have put others in place since.

        `late`: in case a step failed half-way. What the user has made of our copies since then,
        as by `zero_grad(set_to_none=False)` and a backward pass, is theirs.
        """
        for (parameter, gradient, ours), version in zip(self._aside, self._versions):
            if parameter.grad is ours:
                changed = late and ours._version != version
                parameter.grad = ours.clone() if changed else gradient
        self._aside = []


def _plain(gradient: Any, shape: torch.Size) -> Tensor:
    """A gradient as a tensor of this process: its local part, or all of it."""
    if not is_sharded(gradient):
        return gradient  # type: ignore[no-any-return]
    local: Tensor = gradient.to_local()
    return local if local.shape == shape else gradient.full_tensor()


def _like(copy: Tensor, gradient: Any) -> Tensor:
    """A copy in the form that a gradient has."""
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
