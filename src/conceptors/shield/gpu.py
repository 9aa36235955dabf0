"""Process equal small blocks together in few kernels, and replay them as a CUDA graph.

Nothing here changes what a step computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors._internal.cuda_graph import CudaGraph
from conceptors._internal.precision import exactly, tensor_cores
from conceptors.shield.block import GuardedBlock
from conceptors.shield.projection import ElementWise, Factored, Projection

_SMALL = 2**20  # a weight with fewer numbers does not fill a GPU
_TILE = 16  # odd sizes of factors are slow


class Stack(GuardedBlock):
    """Equal blocks with concatenated groups. Their gradients are in memory that does not move."""

    def __init__(self, members: Sequence[GuardedBlock]) -> None:
        first = members[0]
        self.device, self.scale, self.is_sharded = first.device, first.scale, False
        self.once, self.corrects, self.rough = first.once, first.corrects, first.rough
        self.projection = _joined([member.projection for member in members])
        origins = [m.origin for m in members if m.origin is not None]
        self.origin = _padded(origins) if origins else None
        self._members = members
        self._views = [member.load_weights() for member in members]
        self._slots = [member.gradient_parts() for member in members]
        self._sizes = [len(views[0]) for views in self._views]
        self.crossed, self.drift, self.previous = False, None, None
        copies = [m.previous for m in members if m.previous is not None]
        if len(copies) == len(members):
            self.previous = [torch.cat(parts) for parts in zip(*copies)]
            self._share_copies(self.previous)

    def project_gradients(self) -> None:
        parts = [torch.cat(views) for views in zip(*self._slots)]
        if not self.corrects:
            self.measure_drift()
        self.projection.apply_(parts, drift=self.scaled_drift())
        self._scatter(parts, self._slots)

    def load_weights(self) -> list[Tensor]:
        self._now = [torch.cat(views) for views in zip(*self._views)]
        return self._now

    def store_weights(self) -> None:
        self._scatter(self._now, self._views)
        self._now = []

    def copy_weights(self) -> None:
        is_first = self.previous is None
        super().copy_weights()
        if is_first and self.previous is not None:
            self._share_copies(self.previous)

    def _share_copies(self, previous: list[Tensor]) -> None:
        parts = [part.split(self._sizes) for part in previous]
        for member, copies in zip(self._members, zip(*parts)):
            member.previous = list(copies)

    def _scatter(self, parts: list[Tensor], views: list[list[Tensor]]) -> None:
        for i, part in enumerate(parts):
            torch._foreach_copy_([view[i] for view in views], list(part.split(self._sizes)))


class Work:
    """What is done around the steps of some blocks; on a GPU, recorded once and replayed."""

    def __init__(self, blocks: Sequence[GuardedBlock]) -> None:
        self._eager = [b for b in blocks if b.device.type != "cuda" or b.is_sharded]
        self._static = [block for block in blocks if block not in self._eager]
        self._slots: dict[int, tuple[nn.Parameter, Tensor]] = {}  # a copy of each gradient
        for block in self._static:
            for p in block.parameters:
                self._slots.setdefault(id(p), (p, torch.zeros_like(p.data)))
            block.gradients = {id(p): self._slots[id(p)][1] for p in block.parameters}
        merged = _stacked(self._static)
        self._blocks = [*self._eager, *merged]
        self._project_eager = _each("project_current_gradients", self._eager)
        self._project_slots = _of_all("project_gradients", merged)
        corrected = [
            block for block in merged if block.corrects
        ]  # an empty graph cannot be recorded
        self.copy_weights = _both(
            _of_all("copy_weights", corrected), _each("copy_weights", self._eager)
        )
        self.project_steps = _both(
            _of_all("project_step", corrected), _each("project_step", self._eager)
        )

    def project_gradients(self) -> None:
        """Project all gradients in place."""
        self._project_eager()
        present = [block for block in self._static if block.has_gradients()]
        if present:
            slots, gradients = self._fill_slots()
            self._project_slots()
            _copy_all(gradients, slots)
            for block in present:
                block.store_gradients()

    @exactly()
    def measure_drifts(self) -> None:
        """Compute how far all blocks are from W_previous."""
        for block in self._blocks:
            block.measure_drift()

    def _fill_slots(self) -> tuple[list[Tensor], list[Tensor]]:
        """Copy the gradients; return the copies and gradients that are not sparse."""
        slots, gradients = [], []
        for parameter, slot in self._slots.values():
            if parameter.grad is None:
                slot.zero_()
            elif parameter.grad.layout == torch.sparse_coo:
                slot.copy_(parameter.grad.to_dense())
            else:
                slots.append(slot)
                gradients.append(parameter.grad)
        _copy_all(slots, gradients)
        return slots, gradients


def _of_all(what: str, blocks: Sequence[GuardedBlock]) -> Callable[[], None]:
    """Return a method of all blocks as one function, which replays a recording on each GPU.

    Blocks that share memory run in turn.
    """
    graphs = []
    for device in dict.fromkeys(block.device for block in blocks):
        here = [block for block in blocks if block.device == device]
        pieces = [_each(what, [block]) for block in here if not block.crossed]
        crossed = _each(what, [block for block in here if block.crossed])
        graphs.append(CudaGraph(*pieces, crossed, device=device))

    def run() -> None:
        for graph in graphs:
            graph()

    return run


def _each(what: str, blocks: Sequence[GuardedBlock]) -> Callable[[], None]:
    """Return a method of all blocks as one function."""

    rough = [getattr(block, what) for block in blocks if block.rough]
    exact = [getattr(block, what) for block in blocks if not block.rough]

    @exactly()
    def run() -> None:
        for method in exact:
            method()
        if rough:
            with tensor_cores(cpu=True):
                for method in rough:
                    method()

    return run if blocks else lambda: None


def _copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        first()
        second()

    return run


def _stacked(blocks: Sequence[GuardedBlock]) -> list[GuardedBlock]:
    """Replace equal small blocks on a GPU by stacks."""
    alike: dict[object, list[GuardedBlock]] = {}
    for block in blocks:
        alike.setdefault(_kind(block), []).append(block)
    return [
        one
        for kind, members in alike.items()
        for one in ([Stack(members)] if kind is not None and len(members) > 1 else members)
    ]


def _kind(block: GuardedBlock) -> object:
    """Return what blocks in a stack have in common; None for a block that stands alone."""
    projection, weights = block.projection, block.load_weights()
    if block.crossed or not isinstance(projection, (ElementWise, Factored)):
        return None
    if sum(w.numel() for w in weights) > _SMALL:
        return None
    shapes = tuple((w.shape[1:], w.dtype) for w in weights)
    ways = (block.once, block.corrects, block.rough, block.origin is None)
    return type(projection), shapes, ways, block.device


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
