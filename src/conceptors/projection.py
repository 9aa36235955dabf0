"""Taking off a change of weights what earlier tasks have claimed: Δ ↦ Δ (I - A) = Δ - Δ A."""

from __future__ import annotations

import torch
from torch import Tensor

from conceptors import algebra
from conceptors.conceptor import Conceptor


class Projector:
    """The part Δ A of a change Δ `[g, out, d]` that lies in claimed space.

    Dense: one product with A. Factored, A = U diag(s) Uᵀ with r < d / 2: two thin products, and
    of the weights before a step only W U `[g, out, r]` is kept. d = 1: scalars.
    """

    def __init__(self, claimed: Conceptor, dtype: torch.dtype, rank: int | None = None) -> None:
        full = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        if rank is not None and rank < claimed.dim:
            claimed = claimed.strongest(rank)
        vectors, values, rest = claimed.spectrum
        eps = torch.finfo(full).eps  # what is smaller vanishes in rounding
        needed = int((values > eps).sum(-1).max()) if values.numel() else 0
        self.dim = claimed.dim
        self.hard = bool(((values == 0) | (values == 1)).all())  # twice is the same as once
        self.matrix: Tensor | None = None
        if self.dim > 1 and rest == 0.0 and needed < self.dim // 2:
            thin = claimed.strongest(needed)
            vectors, values, _ = thin.spectrum
            self.vectors, self.values = vectors.to(full), values.to(full)
        else:
            self.matrix = claimed.matrix().to(full)

    @property
    def rank(self) -> int:
        return self.dim if self.matrix is not None else int(self.values.shape[-1])

    def claimed(self, change: Tensor) -> Tensor:
        """Δ A."""
        if self.matrix is None:
            return ((change @ self.vectors) * self.values.unsqueeze(-2)) @ self.vectors.mT
        if self.dim == 1:
            return change * self.matrix
        return change @ self.matrix

    def mark(self, weights: Tensor) -> Tensor:
        """What must be kept of the weights before a step to correct it afterwards."""
        return weights.clone() if self.matrix is not None else weights @ self.vectors

    def correction(self, weights: Tensor, mark: Tensor) -> Tensor:
        """(W - W_before) A, from the weights after a step and the mark made before it."""
        if self.matrix is not None:
            return self.claimed(weights - mark)
        moved = weights @ self.vectors - mark
        return (moved * self.values.unsqueeze(-2)) @ self.vectors.mT


class FreeRows:
    """Rows x of a layer's inputs, and the constant 1 that goes with its bias, times I - A.

    Rows are `[g, n, width]`; with `group` given, `[n, width]` of that group alone.
    """

    def __init__(self, projector: Projector, width: int, group: int | None = None) -> None:
        self._bias = projector.dim > width
        self._thin = projector.matrix is None
        if projector.matrix is None:
            left = projector.vectors
            right = -(left * projector.values.unsqueeze(-2)).mT
            blocks = [left[:, :width], left[:, width:], right[..., :width], right[..., width:]]
        else:
            free = torch.eye(projector.dim).to(projector.matrix) - projector.matrix
            rows, last = free[:, :width], free[:, width:]
            blocks = [rows[..., :width], last[..., :width], rows[..., width:], last[..., width:]]
        self._blocks = [(b if group is None else b[group]).contiguous() for b in blocks]
        self._space: dict[str, Tensor] = {}

    def __call__(self, x: Tensor, *, reuse: bool = False) -> tuple[Tensor, Tensor | None]:
        """(rows `[..., n, width]`, ones `[..., n, 1]` if there is a bias).

        `reuse` puts rows `[n, width]` where those of the last call were: large blocks of new memory
        are dear on the CPU.
        """
        reuse = reuse and x.ndim == 2 and not torch.is_grad_enabled()
        inner, last, outer, corner = self._blocks
        if not self._thin:
            rows = self._product(last, x, inner, "rows" if reuse else None)
            return rows, _times_vector(x, outer) + corner if self._bias else None
        along = self._product(last, x, inner, "along" if reuse else None)
        rows = _plus_product(x, along, outer, self._room("rows", x, outer) if reuse else None)
        return rows, 1 + _times_vector(along, corner) if self._bias else None

    def _product(self, last: Tensor, x: Tensor, factor: Tensor, room: str | None) -> Tensor:
        """x @ factor, and the share of the constant 1 if there is a bias."""
        out = None if room is None else self._room(room, x, factor)
        return (
            _plus_product(last, x, factor, out) if self._bias else torch.matmul(x, factor, out=out)
        )

    def _room(self, name: str, x: Tensor, factor: Tensor) -> Tensor:
        """`[n, columns of the factor]`, kept for the largest n so far."""
        held = self._space.get(name)
        if held is None or len(held) < len(x):
            held = self._space[name] = x.new_empty(len(x), factor.shape[-1])
        return held[: len(x)]


def _plus_product(added: Tensor, left: Tensor, right: Tensor, out: Tensor | None) -> Tensor:
    """added + left @ right."""
    return (torch.addmm if left.ndim == 2 else torch.baddbmm)(added, left, right, out=out)


def _times_vector(matrix: Tensor, column: Tensor) -> Tensor:
    """matrix @ column; a product of matrices would be slower on the CPU."""
    return matrix @ column if matrix.ndim > 2 else torch.mv(matrix, column[:, 0])[:, None]


def restrict(claimed: Conceptor, columns: Tensor) -> Conceptor:
    """The conceptor for changes of some columns only, the others being fixed.

    With odds Q of all columns it is the conceptor of the submatrix of Q; directions of infinite
    odds are claimed with their components in those columns.
    """
    spectrum = claimed._parts()
    batch = claimed.batch_shape
    items = []
    if spectrum.rest:  # everything outside is claimed: see it as all directions
        spectrum = algebra.complete(spectrum)
    for item in algebra.items_of(spectrum, batch):
        rows = item.vectors[columns.to(item.vectors.device)]  # [k, r]
        hard = torch.isinf(item.odds)
        soft_part = algebra.from_odds_matrix((rows * torch.where(hard, 0.0, item.odds)) @ rows.mT)
        left, sines, _ = torch.linalg.svd(rows[:, hard], full_matrices=False)
        kept = left[:, sines > algebra.tolerance(len(columns), rows.dtype)]
        ones = torch.full((kept.shape[1],), torch.inf, dtype=rows.dtype, device=rows.device)
        hard_part = algebra.Spectrum(kept, ones)
        items.append(algebra.disjoin(soft_part, hard_part) if kept.shape[1] else soft_part)
    joined = algebra.stack(items, batch) if batch else items[0]
    return Conceptor._make(claimed.dtype, spectrum=joined)
