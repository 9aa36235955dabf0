"""The updates of many layers on a GPU, corrected together in as few kernels as possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from conceptors.precision import halves, sharp_product, tensor_cores
from conceptors.updates import Factored, Pairs, Update, correct_pairs, pays_to_split

_SMALL = 2**23  # numbers up to which a weight does not fill a GPU by itself
_COPIED = 2**20  # up to which a copy costs less than a kernel of its own


class FactoredStack:
    """Small layers of one shape on a GPU, in a few batched products."""

    def __init__(self, members: list[Factored]) -> None:
        first = members[0]
        self._weights = [m.blocks[0][0] for m in members]
        self._biases = [m.blocks[1][0, :, 0] for m in members] if len(first.blocks) > 1 else []
        self._into = torch.cat([m.into[0] for m in members])
        self._back = torch.cat([m.back[0] for m in members])
        sharp = pays_to_split(first.blocks[0], first.kept.shape[-1], len(members))
        self._halves = halves(self._into) if sharp else None
        if self._biases:
            self._bias_into = torch.cat([m.into[1] for m in members])  # [L, 1, r]
            self._bias_back = torch.cat([m.back[1] for m in members])  # [L, r, 1]
        self._kept = torch.cat([m.kept for m in members])
        self._free = None
        if any(m.free is not None for m in members):
            none = torch.zeros_like(first.kept)
            self._free = torch.cat([none if m.free is None else m.free for m in members])
        self._large = self._weights[0].numel() >= _COPIED
        for number, member in enumerate(members):
            member.kept = self._kept[number : number + 1]

    @staticmethod
    def accepts(members: list[Factored], one: Factored) -> bool:
        """Whether a layer goes with the others."""
        first = members[0]
        return (
            [b.shape for b in one.blocks] == [b.shape for b in first.blocks]
            and one.kept.shape == first.kept.shape
            and one.blocks[0].dtype == first.blocks[0].dtype
            and one.blocks[0].dtype in (torch.float32, torch.float64)
            and len(one.blocks[0]) == 1
            and len(one.blocks) <= 2
            and one.blocks[0].numel() <= _SMALL
        )

    def correct(self) -> None:
        weights = torch.stack(self._weights)
        if self._halves is None:
            moved = torch.baddbmm(self._kept, weights, self._into, beta=-1)
        else:
            moved = sharp_product(weights, self._halves).sub_(self._kept)
        if self._biases:
            moved.baddbmm_(torch.stack(self._biases)[..., None], self._bias_into)
        with tensor_cores():
            if self._large:
                for weight, left, right in zip(self._weights, moved, self._back):
                    weight.addmm_(left, right, alpha=-1)
            else:
                torch._foreach_sub_(self._weights, list(torch.bmm(moved, self._back)))
            if self._biases:
                taken = torch.bmm(moved, self._bias_back)[..., 0]
                torch._foreach_sub_(self._biases, list(taken))
        if self._free is not None:
            self._kept.addcmul_(moved, self._free)


def stacked(updates: list[Update]) -> list[Callable[[], None]]:
    """The corrections of all updates in as few pieces as possible; they may run in any order."""
    alone = [u.correct for u in updates if not isinstance(u, (Factored, Pairs))]
    pairs: dict[torch.dtype, list[Pairs]] = {}
    for pair in updates:
        if isinstance(pair, Pairs):
            pairs.setdefault(pair.blocks[0].dtype, []).append(pair)
    stacks: list[list[Factored]] = []
    for update in updates:
        if not isinstance(update, Factored):
            continue
        fitting = [members for members in stacks if FactoredStack.accepts(members, update)]
        if fitting:
            fitting[0].append(update)
        else:
            stacks.append([update])
    return [
        *(m[0].correct if len(m) == 1 else FactoredStack(m).correct for m in stacks),
        *(partial(correct_pairs, members) for members in pairs.values()),
        *alone,
    ]
