"""Keeping what a step did to weights in the free space: W ← W - (W - W_before) A, in place.

An update is **marked** before a step and **corrected** after it. A mark stays good from one step
to the next as long as only steps change the weights, so that it is usually made once a task:

- factored A = U diag(s) Uᵀ: the mark is W U `[g, out, r]`; two thin products a step. What rounding
  leaves in claimed space is seen, and taken off, at the next step, so that it never adds up.
- dense A, where most directions are claimed: the mark is a copy of W; one product a step.
- blocks of one or two columns (embeddings, norm layers): the same, number by number.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.precision import full, halves, sharp_product, tensor_cores, thirds, widens
from conceptors.projection import Projector
from conceptors.sites import Site, is_sharded

_TILE = 16
_WIDE, _LARGE = 96, 1e8  # rank and operations from which on splitting numbers in two pays


class Update(Protocol):
    """One site's weights around a step."""

    static: bool  # reads and writes the same memory at every step

    def mark(self) -> None:
        """Note the weights as they are."""

    def correct(self) -> None:
        """Take off what moved in claimed space since the mark, and mark the result."""


def make_update(site: Site, active: list[nn.Parameter], projector: Projector) -> Update:
    """The way that fits a site's shape and memory."""
    if any(is_sharded(p.data) for p in active) and not site.block.rows_first:
        return Gathered(site, active, projector)
    blocks, order = [], []
    start = 0
    for parameter in active:
        (view,) = site.views({id(parameter): site.read(parameter)}, [parameter])
        found = in_place(view)
        if found is None:
            return Gathered(site, active, projector)
        block, columns = found
        order.append(columns + start)
        start += block.shape[-1]
        blocks.append(block)
    if projector.dim == 1:
        return Scaled(blocks[0], projector)
    if projector.dim == 2 and len(blocks) == 2:
        return Pairs(blocks, projector)
    kind = Dense if projector.matrix is not None else Factored
    return kind(blocks, [columns.to(blocks[0].device) for columns in order], projector)


def in_place(view: Tensor) -> tuple[Tensor, Tensor] | None:
    """A view `[g, out, ...]` as matrices `[g, out, k]` of the same memory, in memory order.

    Also tells which column of the block each of the k is; None if no such view exists.
    """
    inner = view.shape[2:]
    order = sorted(range(len(inner)), key=lambda axis: -view.stride(2 + axis))
    permuted = view.permute(0, 1, *(2 + axis for axis in order))
    try:
        block = permuted.view(*view.shape[:2], inner.numel())
    except RuntimeError:
        return None
    columns = torch.arange(inner.numel()).reshape(inner).permute(order).flatten()
    return block, columns


class Factored:
    """Weights `[g, out, k]`, side by side, against A = U diag(s) Uᵀ."""

    static = True

    def __init__(self, blocks: list[Tensor], columns: list[Tensor], projector: Projector) -> None:
        self.blocks = blocks
        vectors, values = _padded(projector.vectors, projector.values)
        sharp = pays_to_split(blocks[0], values.shape[-1])
        self.into, self.back = [], []
        for at in columns:
            own = vectors[:, at].contiguous()  # [g, k, r]
            self.into.append(own)
            self.back.append((own * values.unsqueeze(-2)).mT.contiguous())
        self.kept = torch.zeros(
            *blocks[0].shape[:2], values.shape[-1], dtype=vectors.dtype, device=vectors.device
        )
        free = (1 - values.unsqueeze(-2)).expand_as(self.kept)
        self.free = None if bool((projector.values == 1).all()) else free
        self._halves = halves(self.into[0]) if sharp else None
        self._thirds: Tensor | None = None
        alone = len(blocks[0]) == 1
        if sharp and alone and blocks[0].dtype == torch.bfloat16 and widens(blocks[0].device):
            self._halves, self._thirds = None, thirds(self.into[0][0])
            self.back[0] = self.back[0].bfloat16()

    def mark(self) -> None:
        self.kept.copy_(self._moved(torch.zeros_like(self.kept)))

    def take_mark(self, mark: Tensor) -> bool:
        """Use a mark made elsewhere, if it is one of these weights up to rounding."""
        if mark.shape != self.kept.shape:
            return False
        before, kind = self.kept.clone(), self.blocks[0].dtype
        size = torch.finfo(kind).eps * (16 if kind in (torch.float16, torch.bfloat16) else 1e3)
        self.mark()
        now, mark = self.kept, mark.to(self.kept)
        if not float((mark - now).abs().amax()) <= size * float(now.abs().amax()):
            self.kept.copy_(before)
            return False
        self.kept.copy_(mark)
        return True

    def correct(self) -> None:
        moved = self._moved(self.kept)
        # what rounding leaves is taken off at the next step
        with tensor_cores() if moved.is_cuda else nullcontext():
            for block, back in zip(self.blocks, self.back):
                _subtract_product(block, moved, back)
        if self.free is not None:
            self.kept.addcmul_(moved, self.free)

    def _moved(self, kept: Tensor) -> Tensor:
        """W U - kept `[g, out, r]`."""
        moved: Tensor
        if self._thirds is not None:
            wide: Any = torch.mm
            parts = wide(self.blocks[0][0], self._thirds, out_dtype=torch.float32)
            moved = parts.unflatten(-1, (3, -1)).sum(-2)[None].sub_(kept)
        elif self._halves is not None:
            moved = sharp_product(self.blocks[0], self._halves).sub_(kept)
        else:
            moved = _plus_product(kept, self.blocks[0], self.into[0], -1)
        for block, into in zip(self.blocks[1:], self.into[1:]):
            moved = _plus_product(moved, block, into, 1)
        return moved


class Dense:
    """Weights `[g, out, k]`, side by side, against a matrix A."""

    static = True

    def __init__(self, blocks: list[Tensor], columns: list[Tensor], projector: Projector) -> None:
        assert projector.matrix is not None
        self._blocks = blocks
        order = torch.cat(columns)
        matrix = projector.matrix[:, order][..., order]
        self._claims = [m.contiguous() for m in matrix.split([b.shape[-1] for b in blocks], -1)]
        self.kept = self._now()

    def mark(self) -> None:
        self.kept.copy_(self._now())

    def correct(self) -> None:
        change = self._now().sub_(self.kept)
        for block, claims in zip(self._blocks, self._claims):
            _subtract_product(block, change, claims)
        self.mark()

    def _now(self) -> Tensor:
        return torch.cat([full(block) for block in self._blocks], -1)


class Scaled:
    """One column a group (embeddings): W ← W + a (W_before - W) with one a for each group.

    Only groups that claim anything (the tokens that were met) are looked at.
    """

    static = True

    def __init__(self, block: Tensor, projector: Projector) -> None:
        assert projector.matrix is not None
        claims = projector.matrix.to(block.dtype)  # [g, 1, 1]
        self.block = block
        self.groups: Tensor | None = None
        met = claims.flatten() > torch.finfo(block.dtype).eps
        if 2 * int(met.sum()) < len(met):
            self.groups = met.nonzero().flatten()
            claims = claims[self.groups]
        self.claims = claims
        self.kept = self._now().clone()

    def mark(self) -> None:
        self.kept.copy_(self._now())

    def correct(self) -> None:
        if self.groups is None:
            self.block.lerp_(self.kept, self.claims)
            self.mark()
        else:
            now = self._now()
            torch.lerp(now, self.kept, self.claims, out=self.kept)
            self.block.index_copy_(0, self.groups, self.kept)

    def _now(self) -> Tensor:
        return self.block if self.groups is None else self.block.index_select(0, self.groups)


class Tied:
    """One weight used both as an embedding and as a matrix, as language models often have it.

    W ← W_before + (I - D) (W - W_before) (I - A), with diagonal D: first A, then D. The mark of
    the matrix follows without another product.
    """

    static = True

    def __init__(self, factored: Factored, scaled: Scaled) -> None:
        self.factored, self._scaled = factored, scaled

    def mark(self) -> None:
        self.factored.mark()
        self._scaled.mark()

    def correct(self) -> None:
        factored, scaled = self.factored, self._scaled
        before = factored.kept.clone()
        factored.correct()
        scaled.correct()
        claims = scaled.claims[..., 0].to(before.dtype)  # [tokens, 1]
        kept, before = factored.kept[0], before[0]  # [tokens, r]
        if scaled.groups is None:
            kept.lerp_(before, claims)
        else:
            held, old = kept[scaled.groups], before[scaled.groups]
            kept.index_copy_(0, scaled.groups, held.lerp_(old, claims))


def tie(updates: list[Update]) -> Update | None:
    """The two updates of a tied weight as one; None if they are not two such."""
    factored = [u for u in updates if isinstance(u, Factored)]
    scaled = [u for u in updates if isinstance(u, Scaled)]
    if len(updates) != 2 or len(factored) != 1 or len(scaled) != 1:
        return None
    one, other = factored[0].blocks, scaled[0].block
    if len(one) != 1 or one[0].data_ptr() != other.data_ptr() or one[0].numel() != other.numel():
        return None
    return Tied(factored[0], scaled[0])


class Pairs:
    """Two columns a group (weight and bias of norm layers), number by number."""

    static = True

    def __init__(self, blocks: list[Tensor], projector: Projector) -> None:
        assert projector.matrix is not None
        a = projector.matrix[..., None, None]  # [g, 2, 2, 1, 1]
        shape = blocks[0].shape
        self.blocks = blocks
        self.claims = [[a[:, i, j].expand(shape).contiguous() for j in (0, 1)] for i in (0, 1)]
        self.kept = [full(block).clone() for block in blocks]

    def mark(self) -> None:
        mark_pairs([self])

    def correct(self) -> None:
        correct_pairs([self])


def mark_pairs(members: list[Pairs]) -> None:
    """Note the numbers of many norm layers in a few kernels."""
    for side in (0, 1):
        torch._foreach_copy_([m.kept[side] for m in members], [m.blocks[side] for m in members])


def correct_pairs(members: list[Pairs]) -> None:
    """Correct many norm layers of one dtype in a few kernels."""
    change = [
        torch._foreach_sub([full(m.blocks[i]) for m in members], [m.kept[i] for m in members])
        for i in (0, 1)
    ]
    for j in (0, 1):
        blocks = [m.blocks[j] for m in members]
        taken = torch._foreach_mul(change[0], [m.claims[0][j] for m in members])
        torch._foreach_addcmul_(taken, change[1], [m.claims[1][j] for m in members])
        if blocks[0].dtype == taken[0].dtype:
            torch._foreach_sub_(blocks, taken)
        else:
            for block, part in zip(blocks, taken):
                block.sub_(part)
    mark_pairs(members)


class Gathered:
    """Weights that have no such view in memory: copied together, and changed through a copy."""

    static = False

    def __init__(self, site: Site, active: list[nn.Parameter], projector: Projector) -> None:
        self._site, self._active, self._projector = site, active, projector
        self._sharded = any(is_sharded(p.data) for p in active)  # marked before every step
        self.kept: Tensor | None = None

    def mark(self) -> None:
        self.kept = self._projector.mark(full(self._site.matrix(self._active)))

    def correct(self) -> None:
        if self.kept is None:
            return
        weights = full(self._site.matrix(self._active))
        self._site.subtract(self._projector.correction(weights, self.kept), self._active)
        if not self._sharded:
            self.mark()


def _subtract_product(block: Tensor, left: Tensor, right: Tensor) -> None:
    left = left.to(right.dtype)
    if block.dtype != left.dtype:
        block.sub_(left @ right)
    elif len(block) == 1:
        block[0].addmm_(left[0], right[0], alpha=-1)
    else:
        block.baddbmm_(left, right, alpha=-1)


def _plus_product(added: Tensor, left: Tensor, right: Tensor, sign: int) -> Tensor:
    """left @ right + sign * added."""
    left = full(left)
    if len(left) == 1:
        return torch.addmm(added[0], left[0], right[0], beta=sign)[None]
    return torch.baddbmm(added, left, right, beta=sign)


def _padded(vectors: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """On a GPU, directions that claim nothing fill up to whole tiles: odd sizes are slow."""
    missing = -values.shape[-1] % _TILE if vectors.is_cuda else 0
    return functional.pad(vectors, (0, missing)), functional.pad(values, (0, missing))


def pays_to_split(block: Tensor, rank: int, layers: int = 1) -> bool:
    """Whether three products on tensor cores, and splitting numbers, beat one of float32."""
    work = 2.0 * layers * block.numel() * rank
    return block.is_cuda and block.dtype != torch.float64 and rank >= _WIDE and work >= _LARGE
