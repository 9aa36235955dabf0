"""Process equal small blocks together in few kernels, and replay them as a CUDA graph.

Nothing here changes what a step computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal.cuda_graph import CudaGraph
from conceptors._internal.precision import exactly
from conceptors.shield.block import GuardedBlock
from conceptors.shield.projection import ElementWise, Factored, Projection

_SMALL = 2**20  # a weight with fewer numbers does not fill a GPU
_TILE = 16  # odd sizes of factors are slow


class Stack(GuardedBlock):
    """Equal blocks, whose groups are concatenated, in memory that does not move."""

    def __init__(self, members: Sequence[GuardedBlock]) -> None:
        first = members[0]
        self._members, self.device, self.scale = members, first.device, first.scale
        self.once, self.corrects, self.crossed = first.once, first.corrects, False
        self.is_sharded, self.rough = False, first.rough
        self.projection = _joined([member.projection for member in members])
        origins = [m.origin for m in members if m.origin is not None]
        self.origin = _padded(origins) if origins else None
        self._views = [member.load_weights() for member in members]
        self._sizes = [len(views[0]) for views in self._views]
        columns = range(len(self._views[0]))
        self._now = [torch.cat([views[i] for views in self._views]) for i in columns]
        self._static = [torch.zeros_like(now) for now in self._now]  # gradients
        self.previous = None
        copies = [m.previous for m in members if m.previous is not None]
        if len(copies) == len(members):
            self.previous = [torch.cat([copy[i] for copy in copies]) for i in columns]
            self._share_copies(self.previous)

    def copy_weights(self) -> None:
        is_first = self.previous is None
        super().copy_weights()
        if is_first and self.previous is not None:
            self._share_copies(self.previous)

    def _share_copies(self, previous: list[Tensor]) -> None:
        parts = [part.split(self._sizes) for part in previous]
        for member, copies in zip(self._members, zip(*parts)):
            member.previous = list(copies)

    def load_gradients(self) -> bool:
        here, there, loaded = [], [], False
        for number, member in enumerate(self._members):
            static = [part.split(self._sizes)[number] for part in self._static]
            if member.load_gradients():
                loaded = True
                here += static
                there += member.gradient_parts()
            else:
                torch._foreach_zero_(static)
        if here:
            torch._foreach_copy_(here, there)
        return loaded

    def apply_gradients(self) -> None:
        with self.precision():
            self.projection.apply_(self._static, self._drift())

    def gradient_parts(self) -> list[Tensor]:
        return self._static

    def store_gradients(self) -> None:
        here, there = [], []
        for number, member in enumerate(self._members):
            if member._gradients:
                there += member.gradient_parts()
                here += [part.split(self._sizes)[number] for part in self._static]
        if here:
            torch._foreach_copy_(there, here)
        for member in self._members:
            member.store_gradients()

    def load_weights(self) -> list[Tensor]:
        for i, now in enumerate(self._now):
            torch.cat([views[i] for views in self._views], out=now)
        return self._now

    def store_weights(self) -> None:
        for i, now in enumerate(self._now):
            torch._foreach_copy_([views[i] for views in self._views], list(now.split(self._sizes)))


class Work:
    """What is done around the steps of some blocks; on a GPU, recorded once and replayed."""

    def __init__(self, blocks: Sequence[GuardedBlock]) -> None:
        self._blocks = _stacked(blocks)
        self._stacks = [block for block in self._blocks if isinstance(block, Stack)]
        apart = [block for block in self._blocks if not block.crossed]
        crossed = [block for block in self._blocks if block.crossed]
        self._apply_to_stacks = _recorded([(s.device, s.apply_gradients) for s in self._stacks])
        self.copy_weights = _of_all("copy_weights", apart, crossed)
        self.project_steps = _of_all("project_step", apart, crossed)

    @exactly()
    def project_gradients(self) -> None:
        """Project all gradients in place."""
        loaded = [block for block in self._blocks if block.load_gradients()]
        if any(isinstance(block, Stack) for block in loaded):
            self._apply_to_stacks()
        for block in loaded:  # in turn: blocks that share memory are projected one after another
            if not isinstance(block, Stack):
                block.apply_gradients()
            block.store_gradients()


def _of_all(
    what: str, apart: Sequence[GuardedBlock], crossed: Sequence[GuardedBlock]
) -> Callable[[], None]:
    """Return a method of all blocks as one function; crossed blocks share memory: run in turn."""

    def in_turn() -> None:
        for block in crossed:
            getattr(block, what)()

    pieces = [(block.device, getattr(block, what)) for block in apart]
    pieces += [(crossed[0].device, in_turn)] if crossed else []
    if any(block.is_sharded for block in [*apart, *crossed]):
        return lambda: _run([piece for _, piece in pieces])
    return _recorded(pieces)


def _recorded(pieces: list[tuple[torch.device, Callable[[], None]]]) -> Callable[[], None]:
    """Return pieces of work as one function, which replays a recording on each GPU."""
    graphs: list[Callable[[], None]] = []
    for device in dict.fromkeys(device for device, _ in pieces):
        here = [piece for on, piece in pieces if on == device]
        if device.type == "cuda":
            graphs.append(CudaGraph(*here, device=device))
        else:
            graphs.append(lambda here=here: _run(here))  # type: ignore[misc]
    return graphs[0] if len(graphs) == 1 else lambda: _run(graphs)


@exactly()
def _run(pieces: Sequence[Callable[[], None]]) -> None:
    for piece in pieces:
        piece()


def _stacked(blocks: Sequence[GuardedBlock]) -> list[GuardedBlock]:
    """Replace equal small blocks on a GPU by stacks."""
    alike: dict[object, list[GuardedBlock]] = {}
    for block in blocks:
        alike.setdefault(_kind(block), []).append(block)
    return [
        one
        for kind, members in alike.items()
        for one in ([Stack(members)] if isinstance(kind, tuple) else members)
    ]


def _kind(block: GuardedBlock) -> object:
    """Return what blocks in a stack have in common; None for a block that stands alone."""
    projection, weights = block.projection, block.load_weights()
    is_alone = block.device.type != "cuda" or block.is_sharded or block.crossed
    if is_alone or not isinstance(projection, (ElementWise, Factored)):
        return None
    if sum(w.numel() for w in weights) > _SMALL:
        return None
    shapes = tuple((w.shape[1:], w.dtype) for w in weights)
    is_sparse = any(p.grad is not None and p.grad.is_sparse for p in block.parameters)
    ways = (block.once, block.corrects, block.rough, block.origin is None)
    return None if is_sparse else (type(projection), shapes, ways, id(block.scale), block.device)


def _joined(projections: Sequence[Projection]) -> Projection:
    """Concatenate the groups of projections of one form."""
    if all(isinstance(p, ElementWise) for p in projections):
        forms = [p for p in projections if isinstance(p, ElementWise)]
        pulls = [p.pull for p in forms if p.pull is not None]
        return ElementWise(
            torch.cat([p.matrix for p in forms]), torch.cat(pulls) if pulls else None
        )
    thin = [p for p in projections if isinstance(p, Factored)]
    pulls = [p.pull for p in thin if p.pull is not None]
    return Factored(
        _padded([p.vectors for p in thin]),
        _padded([p.gain for p in thin]),
        _padded(pulls) if pulls else None,
    )


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors `[g, n, r]` of several ranks r, with zeros."""
    rank = max(tensor.shape[-1] for tensor in tensors)
    rank += -rank % _TILE if rank > 2 else 0
    return torch.cat([functional.pad(t, (0, rank - t.shape[-1])) for t in tensors])
