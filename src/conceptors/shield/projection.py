"""The free space F = I - A of one weight block, and the projection X ← X F^½.

A step runs in the coordinates V of W = W_before + V F^½: the optimizer receives G F^½, and its step
is multiplied by F^½. Whatever an optimizer does with its gradients, a soft conceptor is applied
once in total, and plain SGD computes W - η G F, which is Algorithm 2.

Three forms of a projection represent X in coordinates in which it is cheap. All have `coordinates`,
`pulls` (whether there is a pull), and `apply_`, which subtracts from X, in place, what the
projection removes from X, or `of` another matrix, such as a step ΔW where X is W. It adds the pull
of a `drift`, W - W_previous in coordinates. It adds the coordinates of what remains to `follow`.

With A = U diag(s) Uᵀ, X F^½ = X - X U diag(1 - √(1 - s)) Uᵀ. A matrix X `[g, out, d]` is given in
parts, one view `[g, out, ...]` per parameter, and changed in place.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from conceptors._internal.precision import full
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.aperture import slack
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import SpectrumForm
from conceptors.algebra.tasks import restrict

_LEAST = 0.02  # with an automatic aperture, smaller singular values count as free,
_STRONG = 0.1  # and beyond the 128 largest these: they slow steps down, and protect little
_MANY = 128

Parts = Sequence[Tensor]


class Claim(NamedTuple):
    """The protected space of one layer.

    Attributes:
        conceptor: A, a batch of g conceptors.
        rank: the largest number of protected directions; None for all.
        is_auto: whether weak directions count as free, because the aperture is automatic.
        stiffness: c `[g]` of a layer with a pull, see `FreeSpace.pull`.
        room: the share of the space that always stays free, see `Auto`.
    """

    conceptor: Conceptor
    rank: int | None = None
    is_auto: bool = False
    stiffness: Tensor | None = None
    room: float = 0.0

    def count_protected(self, values: Tensor, least: float) -> int:
        """Count the protected directions, of singular values `[g, r]` above `least`.

        With an automatic aperture, values above 0.02 count, but beyond 128 only those above 0.1.
        """
        least = max(least, _LEAST) if self.is_auto else least
        found = [int((values > x).sum(-1).max()) if values.numel() else 0 for x in (least, _STRONG)]
        count = min(found[0], max(found[1], _MANY)) if self.is_auto else found[0]
        return count if self.rank is None else min(count, self.rank)


class FreeSpace(NamedTuple):
    """F = I - U diag(s) Uᵀ of g groups with r protected directions, in float64.

    Attributes:
        dim: d.
        vectors: U `[g, d, r]`.
        values: s `[g, r]`, in [0, 1].
        stiffness: c `[g]` of a layer with a pull.
    """

    dim: int
    vectors: Tensor
    values: Tensor
    stiffness: Tensor | None

    @property
    def rank(self) -> int:
        return self.values.shape[-1]

    @property
    def hard(self) -> bool:
        return bool(((self.values == 0) | (self.values == 1)).all())

    def gain(self, once: bool) -> Tensor:
        """Return what F^½ (with `once`, F) removes along each direction, `[g, 1, r]`."""
        values = self.values.unsqueeze(-2)
        return values if once else 1 - (1 - values).sqrt()

    def pull(self, once: bool) -> Tensor | None:
        """Return `[g, 1, r]`; times (W - W_previous) U, it is the pull that is added along U.

        The pull is the gradient of c/2 tr ΔW Q ΔWᵀ, times F^½ (with `once`, F): c q √(1 - s) with
        odds q = s / (1 - s). Weights do not move along hard directions, so these have no pull.
        """
        if self.stiffness is None:
            return None
        free = (1 - self.values).unsqueeze(-2)
        weight = self.values.unsqueeze(-2) * self.stiffness[:, None, None]
        return weight if once else torch.where(free > 0, weight / free.sqrt(), 0.0)

    def matrix(self, scale: Tensor) -> Tensor:
        """Compute U diag(scale) Uᵀ `[g, d, d]` for a scale `[g, 1, r]`."""
        matrix: Tensor = (self.vectors * scale) @ self.vectors.mT
        return matrix

    def complement(self) -> Tensor:
        """Compute F `[g, d, d]`, without cancellation where all directions are listed."""
        kept = self.matrix((1 - self.values).unsqueeze(-2))
        if self.rank == self.dim:
            return kept
        eye = torch.eye(self.dim, dtype=kept.dtype, device=kept.device)
        return kept + eye - self.matrix(torch.ones_like(self.values).unsqueeze(-2))


def free_space(claim: Claim, columns: Tensor | None, like: Tensor) -> FreeSpace:
    """Compute the free space of these columns (None for all), on the device of a weight.

    With `room`, all odds are scaled down until the mean of s over d is at most 1 - room.
    """
    claimed = claim.conceptor if columns is None else restrict(claim.conceptor, columns)
    claimed = claimed.to(like.device)
    dtype = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
    least = torch.finfo(dtype).eps  # smaller values vanish in rounding
    if claimed.spectrum[2]:  # all other directions are claimed: list them
        complete = spectra.complete(claimed.form.spectrum())
        claimed = Conceptor(SpectrumForm(complete, claimed.dtype))
    vectors, values, _ = claimed.spectrum
    needed = claim.count_protected(values, least)
    if needed < values.shape[-1]:
        values, order = values.topk(needed, -1)
        vectors = vectors.take_along_dim(order.unsqueeze(-2), -1)
    values = torch.where(values > (_LEAST if claim.is_auto else least), values, 0.0)
    stiffness = None if claim.stiffness is None else claim.stiffness.to(values)
    if claim.room and values.numel():
        by = slack(values, claimed.dim, claim.room).unsqueeze(-1)
        values = torch.where(by < 1, by * values / (1 - values + by * values), values)
        # the pull is that of A as claimed, so it is relative to the scaled odds
        stiffness = None if stiffness is None else stiffness / by.squeeze(-1)
    return FreeSpace(claimed.dim, vectors, values, stiffness)


class Factored:
    """Thin products with U: the coordinates of X are X U `[g, out, r]`."""

    def __init__(self, vectors: Tensor, gain: Tensor, pull: Tensor | None) -> None:
        self.vectors, self.gain, self.pull = vectors, gain, pull
        self.pulls = pull is not None

    def coordinates(self, parts: Parts) -> Tensor:
        total, start = None, 0
        for part in parts:
            x = full(part.flatten(2))
            rows = self.vectors[:, start : start + x.shape[-1]]
            start += x.shape[-1]
            total = _product(x, rows, total)
        assert total is not None
        return total

    def apply_(
        self,
        parts: Parts,
        *,
        of: Parts | None = None,
        drift: Tensor | None = None,
        follow: Tensor | None = None,
    ) -> None:
        x = self.coordinates(of or parts)
        removed = self._times(x, self.gain)
        if drift is not None and self.pull is not None:
            removed -= self._times(drift, self.pull)
        if follow is not None:
            follow += x - removed
        self._subtract_(parts, removed)

    def _times(self, x: Tensor, factor: Tensor) -> Tensor:
        return x * factor

    def _subtract_(self, parts: Parts, removed: Tensor) -> None:
        start = 0
        for part in parts:
            size = part.shape[2:].numel()
            rows = self.vectors[:, start : start + size].mT
            start += size
            matrix = part.flatten(2)
            is_view = matrix.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
            if is_view and matrix.dtype == removed.dtype:
                _product(removed, rows, matrix, -1)
            else:
                part.sub_(_product(removed, rows).view(part.shape))


class ElementWise(Factored):
    """Embeddings and norm layers, with one or two columns per group: a few sums of columns."""

    def __init__(self, gain: Tensor, pull: Tensor | None) -> None:
        self.gain, self.pull = gain, pull  # [g, d, d]
        self.pulls = pull is not None

    def coordinates(self, parts: Parts) -> Tensor:
        return side_by_side(parts)

    def _times(self, x: Tensor, factor: Tensor) -> Tensor:
        """Compute x `[g, out, d]` @ factor `[g, d, d]` for a small d, where sums are faster."""
        columns = [x[..., i, None] * factor[:, None, i] for i in range(x.shape[-1])]
        return columns[0] if len(columns) == 1 else torch.stack(columns).sum(0)

    def _subtract_(self, parts: Parts, removed: Tensor) -> None:
        for part, amount in zip(parts, split_like(removed, parts)):
            part.sub_(amount)


class Dense:
    """One product with F itself, for gradients where most directions are protected.

    X F is more accurate than X - X A: with a large aperture, only a millionth of X remains. The
    pull is proportional to A here: X F + c D A = (X - c D) F + c D.
    """

    def __init__(self, free: Tensor, stiffness: Tensor | None) -> None:
        self.free = free  # [g, d, d]
        self.stiffness = None if stiffness is None else stiffness[:, None, None]
        self.pulls = stiffness is not None

    def coordinates(self, parts: Parts) -> Tensor:
        return side_by_side(parts)

    def apply_(
        self,
        parts: Parts,
        *,
        of: Parts | None = None,
        drift: Tensor | None = None,
        follow: Tensor | None = None,
    ) -> None:
        x = self.coordinates(parts)
        if drift is None or self.stiffness is None:
            projected = _product(x, self.free)
        else:
            pull = drift * self.stiffness
            projected = _product(x - pull, self.free).add_(pull)
        for part, values in zip(parts, split_like(projected, parts)):
            part.copy_(values)


Projection = Factored | Dense


def make_projection(free: FreeSpace, once: bool, dense: bool, dtype: torch.dtype) -> Projection:
    """Choose the form of a projection; `dense` allows products with F, for gradients only."""
    dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    gain, pull = free.gain(once), free.pull(once)
    if free.dim <= 2:
        matrix = None if pull is None else free.matrix(pull).to(dtype)
        return ElementWise(free.matrix(gain).to(dtype), matrix)
    if dense and 2 * free.rank >= free.dim:
        stiffness = None if free.stiffness is None else free.stiffness.to(dtype)
        return Dense(free.complement().to(dtype), stiffness)
    vectors = free.vectors.to(dtype).contiguous()
    return Factored(vectors, gain.to(dtype), None if pull is None else pull.to(dtype))


def side_by_side(parts: Parts) -> Tensor:
    """Return [W | b ...] `[g, out, d]`, in float32 at least."""
    matrices = [full(part.flatten(2)) for part in parts]
    return matrices[0] if len(matrices) == 1 else torch.cat(matrices, -1)


def split_like(matrix: Tensor, parts: Parts) -> list[Tensor]:
    """Split [W | b ...] `[g, out, d]` into the shapes of the parts."""
    pieces = matrix.split([part.shape[2:].numel() for part in parts], -1)
    return [piece.reshape(part.shape) for piece, part in zip(pieces, parts)]


def _product(
    left: Tensor, right: Tensor, added: Tensor | None = None, alpha: float = 1.0
) -> Tensor:
    """Compute left @ right, or add alpha left @ right to `added`, in place.

    A single matrix is faster than a batch of one.
    """
    if added is None:
        return (left[0] @ right[0])[None] if len(left) == 1 else left @ right
    if len(added) == 1:
        added[0].addmm_(left[0], right[0], alpha=alpha)
        return added
    return added.baddbmm_(left, right, alpha=alpha)
