"""Keeping what a step did to weights in the free space: W ← W - (W - W_before) A, in place.

An update is **marked** before a step and **corrected** after it. A mark stays good from one step
to the next as long as only steps change the weights, so that it is usually made once a task:

- factored A = U diag(s) Uᵀ: the mark is W U `[g, out, r]`; two thin products a step. What rounding
  leaves in claimed space is seen, and taken off, at the next step, so that it never adds up.
- dense A, where most directions are claimed: the mark is a copy of W; one product a step.
- blocks of one or two columns (embeddings, norm layers): the same, number by number.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.precision import halves, sharp_product, tensor_cores, thirds, widens
from conceptors.projection import Projector
from conceptors.sites import Site, is_sharded

_TILE = 16
_SMALL = 2**23  # numbers up to which a weight does not fill a GPU by itself
_COPIED = 2**20  # up to which a copy costs less than a kernel of its own
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
        sharp = _pays_to_split(blocks[0], values.shape[-1])
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


class FactoredStack:
    """Small layers of one shape on a GPU, in a few batched products."""

    def __init__(self, members: list[Factored]) -> None:
        first = members[0]
        self._weights = [m.blocks[0][0] for m in members]
        self._biases = [m.blocks[1][0, :, 0] for m in members] if len(first.blocks) > 1 else []
        self._into = torch.cat([m.into[0] for m in members])
        self._back = torch.cat([m.back[0] for m in members])
        sharp = _pays_to_split(first.blocks[0], first.kept.shape[-1], len(members))
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
        return torch.cat([_full(block) for block in self._blocks], -1)


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
        self.kept = [_full(block).clone() for block in blocks]

    def mark(self) -> None:
        PairsStack([self]).mark()

    def correct(self) -> None:
        PairsStack([self]).correct()


class PairsStack:
    """Many norm layers in a few kernels."""

    def __init__(self, members: list[Pairs]) -> None:
        self._blocks = [[m.blocks[i] for m in members] for i in (0, 1)]
        self._kept = [[m.kept[i] for m in members] for i in (0, 1)]
        self._claims = [[[m.claims[i][j] for m in members] for j in (0, 1)] for i in (0, 1)]

    def mark(self) -> None:
        for kept, blocks in zip(self._kept, self._blocks):
            torch._foreach_copy_(kept, blocks)

    def correct(self) -> None:
        now = [[_full(block) for block in side] for side in self._blocks]
        change = [torch._foreach_sub(new, old) for new, old in zip(now, self._kept)]
        for j, blocks in enumerate(self._blocks):
            taken = torch._foreach_mul(change[0], self._claims[0][j])
            torch._foreach_addcmul_(taken, change[1], self._claims[1][j])
            if blocks[0].dtype == taken[0].dtype:
                torch._foreach_sub_(blocks, taken)
            else:
                for block, part in zip(blocks, taken):
                    block.sub_(part)
        self.mark()


class Gathered:
    """Weights that have no such view in memory: copied together, and changed through a copy."""

    static = False

    def __init__(self, site: Site, active: list[nn.Parameter], projector: Projector) -> None:
        self._site, self._active, self._projector = site, active, projector
        self.kept: Tensor | None = None

    def mark(self) -> None:
        self.kept = self._projector.mark(_full(self._site.matrix(self._active)))

    def correct(self) -> None:
        if self.kept is None:
            return
        weights = _full(self._site.matrix(self._active))
        self._site.subtract(self._projector.correction(weights, self.kept), self._active)
        self.mark()


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
        *(PairsStack(members).correct for members in pairs.values()),
        *alone,
    ]


def _full(block: Tensor) -> Tensor:
    """Half precision is projected in float32."""
    return block.float() if block.dtype in (torch.float16, torch.bfloat16) else block


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
    left = _full(left)
    if len(left) == 1:
        return torch.addmm(added[0], left[0], right[0], beta=sign)[None]
    return torch.baddbmm(added, left, right, beta=sign)


def _padded(vectors: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """On a GPU, directions that claim nothing fill up to whole tiles: odd sizes are slow."""
    missing = -values.shape[-1] % _TILE if vectors.is_cuda else 0
    return functional.pad(vectors, (0, missing)), functional.pad(values, (0, missing))


def _pays_to_split(block: Tensor, rank: int, layers: int = 1) -> bool:
    """Whether three products on tensor cores, and splitting numbers, beat one of float32."""
    work = 2.0 * layers * block.numel() * rank
    return block.is_cuda and block.dtype != torch.float64 and rank >= _WIDE and work >= _LARGE
