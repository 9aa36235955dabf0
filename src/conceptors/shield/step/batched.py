"""Process equal blocks together in few kernels; on a GPU, record and replay them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from conceptors._internal.cuda_graph import CudaGraph
from conceptors._internal.precision import exactly
from conceptors.shield.step.elementwise import Small
from conceptors.shield.step.factored import Directions, Factored
from conceptors.shield.step.memory import Memory
from conceptors.shield.step.strategy import Pull, Strategy

_SMALL = 2**20  # a weight with fewer numbers does not fill a GPU


class StackedMemory(Memory):
    """Blocks of equal shapes, `[1, out, k]` each, copied together as `[layers, out, k]`."""

    is_copy = True

    def __init__(self, members: Sequence[Memory]) -> None:
        self._members = members
        columns = members[0].columns
        blocks = [torch.cat([m.blocks[i] for m in members]) for i in range(len(columns))]
        super().__init__(blocks, columns)

    def load(self) -> list[Tensor]:
        for i, block in enumerate(self.blocks):
            torch.cat([m.load()[i] for m in self._members], out=block)
        return self.blocks

    def store(self) -> None:
        for i, block in enumerate(self.blocks):
            torch._foreach_copy_([m.blocks[i] for m in self._members], list(block.split(1)))


def together(strategies: Sequence[Strategy]) -> list[Strategy]:
    """Merge strategies of equal shapes; merged strategies share their notes."""
    merged: list[Strategy] = []
    factored: dict[object, list[Factored]] = {}
    small: dict[object, list[Small]] = {}
    key: object
    for one in strategies:
        if isinstance(one, Factored) and _stackable(one):
            shapes = tuple(block.shape for block in one.weights.blocks)
            key = (shapes, one.gain.shape, one.directions.dtype, one.pull is None)
            factored.setdefault((key, id(one.pull and one.pull.scale)), []).append(one)
        elif isinstance(one, Small):
            shape, dtype = one.gain.shape[1:], one.weights[0].blocks[0].dtype
            key = (shape, dtype, one.noted.shape[1:], one.pull is None)
            small.setdefault(key, []).append(one)
        else:
            merged.append(one)
    merged += [m[0] if len(m) == 1 else _stacked(m) for m in factored.values()]
    return merged + [m[0] if len(m) == 1 else _joined(m) for m in small.values()]


def _stackable(one: Factored) -> bool:
    first = one.weights.blocks[0]
    is_copy = one.weights.is_copy or one.gradients.is_copy
    is_full = first.dtype in (torch.float32, torch.float64)
    return len(first) == 1 and is_full and not is_copy and first.numel() <= _SMALL


def _stacked(members: list[Factored]) -> Factored:
    weights, gradients = (
        StackedMemory([getattr(m, kind) for m in members]) for kind in ("weights", "gradients")
    )
    parts = [m.directions.parts for m in members]
    vectors = torch.cat([torch.cat(split, 1) for split in parts])  # [layers, d, r] in memory order
    widths = [part.shape[1] for part in parts[0]]
    columns = list(torch.arange(sum(widths)).split(widths))
    noted = torch.cat([m.noted for m in members])
    for number, member in enumerate(members):
        member.noted = noted[number : number + 1]
    pulls = [m.pull for m in members if m.pull is not None]
    pull = None
    if pulls:
        weight, origin = (torch.cat([getattr(p, k) for p in pulls]) for k in ("weight", "origin"))
        pull = Pull(weight, origin, pulls[0].scale)
    rough = members[0].directions.rough
    directions = Directions(vectors, columns, weights.blocks[0], rough)
    gain = torch.cat([m.gain for m in members])
    return Factored(directions, weights, gradients, gain, pull, noted)


def _joined(members: list[Small]) -> Small:
    pulls = [m.pull for m in members if m.pull is not None]
    pull = None
    if pulls:
        pull = (torch.cat([p[0] for p in pulls]), torch.cat([p[1] for p in pulls]))
    joined = Small(
        [memory for m in members for memory in m.weights],
        [memory for m in members for memory in m.gradients],
        torch.cat([m.gain for m in members]),
        pull,
        members[0].scale,
    )
    for member, noted in zip(members, joined.noted.split([len(m.gain) for m in members])):
        member.noted = noted
    return joined


def in_turn(work: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """Return a function that calls these functions in turn."""

    def run() -> None:
        for piece in work:
            piece()

    return run


def recorded(
    work: Sequence[Callable[[], None]], device: torch.device, static: bool
) -> Callable[[], None]:
    """Return the work as one function; on a GPU, replay it if its memory is static."""
    if static and device.type == "cuda":
        return CudaGraph(*work, device=device)

    def run() -> None:
        with exactly():
            in_turn(work)()

    return run
