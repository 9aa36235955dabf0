"""Process equal small blocks together in few kernels, and replay the work on a GPU as CUDA graphs.

Nothing here changes what a step computes.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors._internal.cuda_graph import CudaGraph
from conceptors.shield.guarded import GuardedBlock
from conceptors.shield.projection import ElementWise, Factored, Projection

_SMALL = 2**20  # a weight with fewer numbers does not fill a GPU
_TILE = 16  # odd sizes of factors are slow


class Stack(GuardedBlock):
    """Equal blocks with concatenated groups, which copies their weights."""

    def __init__(self, members: Sequence[GuardedBlock]) -> None:
        first = members[0]
        self.once, self.corrects, self.crossed = first.once, first.corrects, False
        self.precision, self.scale, self.drift = first.precision, first.scale, None
        self.stretch = first.stretch
        self.projection = _joined([member.projection for member in members])
        origins = [m.origin for m in members if m.origin is not None]
        self.origin = _padded(origins) if origins else None
        self.members = members
        self._member_weights = [member.weights for member in members]
        self._sizes = [len(views[0]) for views in self._member_weights]
        copies = [m.previous for m in members if m.previous is not None]
        self.previous = None
        if len(copies) == len(members):
            self._share([torch.cat(parts) for parts in zip(*copies)])

    def copy_weights(self) -> None:
        is_first = self.previous is None
        super().copy_weights()
        if is_first and self.previous is not None:
            self._share(self.previous)

    def _share(self, previous: list[Tensor]) -> None:
        """Let members see their parts of the copies."""
        self.previous = previous
        parts = zip(*(part.split(self._sizes) for part in previous))
        for member, copies in zip(self.members, parts):
            member.previous = list(copies)

    @property
    def weights(self) -> list[Tensor]:
        self._now = [torch.cat(views) for views in zip(*self._member_weights)]
        return self._now

    def write_weights(self) -> None:
        self.scatter(self._now, self._member_weights)

    def scatter(self, parts: list[Tensor], views: list[list[Tensor]]) -> None:
        """Copy concatenated parts to the views of all members."""
        for i, part in enumerate(parts):
            torch._foreach_copy_([view[i] for view in views], list(part.split(self._sizes)))


class Recorded:
    """The work on the blocks of one GPU, which is recorded once and replayed.

    Gradients are copied to memory that does not move, and back.
    """

    def __init__(self, blocks: Sequence[GuardedBlock]) -> None:
        self._blocks, device = blocks, blocks[0].device
        self._slots: dict[int, tuple[nn.Parameter, Tensor]] = {}
        for parameter in (p for block in blocks for p in block.parameters):
            self._slots.setdefault(id(parameter), (parameter, torch.zeros_like(parameter.data)))
        self._parts = {id(b): b.views(self._slots_of(b)) for b in blocks}
        self._units = _stacked(blocks)
        self._is_corrected = any(block.corrects for block in blocks)
        self._copy = self._graph(lambda unit: unit.copy_weights(), device)
        self._project = self._graph(self._project_slots, device)
        self._correct = self._graph(lambda unit: unit.project_step(), device)

    def _slots_of(self, block: GuardedBlock) -> list[Tensor]:
        return [self._slots[id(p)][1] for p in block.parameters]

    def _graph(self, act: Callable[[GuardedBlock], None], device: torch.device) -> CudaGraph:
        """Return the graph of an action on all units; those that share memory take turns."""

        def on_all(units: Sequence[GuardedBlock]) -> None:
            for unit in units:
                act(unit)

        crossed = [unit for unit in self._units if unit.crossed]
        groups = [[unit] for unit in self._units if not unit.crossed]
        if crossed:
            groups.append(crossed)
        return CudaGraph(*(partial(on_all, units) for units in groups), device=device)

    def _project_slots(self, unit: GuardedBlock) -> None:
        """Project the copies of a unit's gradients."""
        if not isinstance(unit, Stack):
            unit.project_parts(self._parts[id(unit)])
            return
        views = [self._parts[id(member)] for member in unit.members]
        parts = [torch.cat(pieces) for pieces in zip(*views)]
        unit.project_parts(parts)
        unit.scatter(parts, views)

    def copy_weights(self) -> None:
        if self._is_corrected:  # an empty graph cannot be recorded
            self._copy()

    def project_gradient(self) -> None:
        present = [block for block in self._blocks if block.has_gradients()]
        dense: list[tuple[Tensor, Tensor]] = []
        sparse: list[tuple[Tensor, Tensor]] = []
        for parameter, slot in self._slots.values():
            if parameter.grad is None:
                slot.zero_()
            else:
                pairs = sparse if parameter.grad.layout == torch.sparse_coo else dense
                pairs.append((parameter.grad, slot))
        for gradient, slot in sparse:
            slot.copy_(gradient.to_dense())
        _copy_all(dense, to_slots=True)
        if present:
            self._project()
        _copy_all(dense, to_slots=False)
        for block in present if sparse else ():
            block.write_gradients(self._slots_of(block))

    def project_step(self) -> None:
        if self._is_corrected:
            self._correct()

    def measure_drift(self) -> None:
        for unit in self._units:
            unit.measure_drift()


def units_of(blocks: Sequence[GuardedBlock]) -> list[GuardedBlock | Recorded]:
    """Return the blocks in the form in which their work is done: together for each GPU."""
    groups: dict[torch.device | None, list[GuardedBlock]] = {}
    for block in blocks:
        is_static = block.device.type == "cuda" and not block.is_sharded
        groups.setdefault(block.device if is_static else None, []).append(block)
    units: list[GuardedBlock | Recorded] = [*groups.pop(None, [])]
    return units + [Recorded(group) for group in groups.values()]


def _copy_all(pairs: list[tuple[Tensor, Tensor]], to_slots: bool) -> None:
    """Copy gradients to their slots, or back."""
    if pairs:
        gradients, slots = map(list, zip(*pairs))
        torch._foreach_copy_(*((slots, gradients) if to_slots else (gradients, slots)))


def _stacked(blocks: Sequence[GuardedBlock]) -> list[GuardedBlock]:
    """Replace equal small blocks by stacks."""
    alike: dict[object, list[GuardedBlock]] = {}
    for block in blocks:
        alike.setdefault(_kind(block) or id(block), []).append(block)
    return [m[0] if len(m) == 1 else Stack(m) for m in alike.values()]


def _kind(block: GuardedBlock) -> object:
    """Return what blocks in a stack have in common; None for a block that stands alone."""
    projection, weights = block.projection, block.weights
    is_large = sum(w.numel() for w in weights) > _SMALL
    if block.crossed or is_large or not isinstance(projection, Factored):
        return None
    shapes = tuple((w.shape[1:], w.dtype) for w in weights)
    flags = block.once, block.corrects, block.rough, block.origin is None, block.stretch
    return type(projection), shapes, flags


def _joined(projections: Sequence[Projection]) -> Projection:
    """Concatenate the groups of projections of one form."""
    elementwise = [p for p in projections if isinstance(p, ElementWise)]
    if elementwise:
        pulls = [p.pull for p in elementwise if p.pull is not None]
        matrix = torch.cat([p.gain for p in elementwise])
        return ElementWise(matrix, torch.cat(pulls) if pulls else None)
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
