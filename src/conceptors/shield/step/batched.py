"""Equal blocks together in as few kernels as possible, on a GPU recorded and replayed."""

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

_SMALL = 2**20  # numbers up to which a weight does not fill a GPU by itself


class Stack(Memory):
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
    """The same work by fewer strategies; the notes of those that were joined are shared."""
    found: list[Strategy] = []
    alike: dict[object, list[Factored]] = {}
    small: dict[object, list[Small]] = {}
    key: object
    for one in strategies:
        if isinstance(one, Factored) and _stackable(one):
            shapes = tuple(block.shape for block in one.weights.blocks)
            key = (shapes, one.gain.shape, one.directions.dtype, one.pull is None)
            alike.setdefault((key, id(one.pull and one.pull.scale)), []).append(one)
        elif isinstance(one, Small):
            shape, dtype = one.taken.shape[1:], one.weights[0].blocks[0].dtype
            key = (shape, dtype, one.noted.shape[1:], one.pull is None)
            small.setdefault(key, []).append(one)
        else:
            found.append(one)
    found += [m[0] if len(m) == 1 else _stacked(m) for m in alike.values()]
    return found + [m[0] if len(m) == 1 else _joined(m) for m in small.values()]


def _stackable(one: Factored) -> bool:
    first = one.weights.blocks[0]
    copies = one.weights.is_copy or one.gradients.is_copy
    full = first.dtype in (torch.float32, torch.float64)
    return len(first) == 1 and full and not copies and first.numel() <= _SMALL


def _stacked(members: list[Factored]) -> Factored:
    weights, gradients = (
        Stack([getattr(m, kind) for m in members]) for kind in ("weights", "gradients")
    )
    parts = [m.directions.parts for m in members]
    vectors = torch.cat([torch.cat(own, 1) for own in parts])  # [layers, d, r] in memory order
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
        torch.cat([m.taken for m in members]),
        pull,
        members[0].scale,
    )
    for member, noted in zip(members, joined.noted.split([len(m.taken) for m in members])):
        member.noted = noted
    return joined


def in_turn(work: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """One after the other."""

    def run() -> None:
        for piece in work:
            piece()

    return run


def recorded(
    work: Sequence[Callable[[], None]], device: torch.device, static: bool
) -> Callable[[], None]:
    """All of the work as one call: on a GPU, if its memory stays where it is, as a replay."""
    if static and device.type == "cuda":
        return CudaGraph(*work, device=device)

    def run() -> None:
        with exactly():
            in_turn(work)()

    return run
