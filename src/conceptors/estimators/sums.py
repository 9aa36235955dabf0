"""What ridge regression needs to know of its data: sums over samples, which add up.

For rows b `[n, d]` and targets y `[n, m]`: Σ b bᵀ, Σ y bᵀ, Σ y² and the number of samples. Any
order, any batches and any machines give the same sums, and taking samples off again is exact to
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from conceptors._internal.precision import exactly

_ROWS = 8192  # that are multiplied at once; float32 products of more would round worse
_BLOCKS = 16  # of columns: Σ b bᵀ is symmetric, so that little more than half of it is computed


TORN = (
    "learning was interrupted in the middle of a sum, which is lost: load the last saved state, "
    "forget the task if it was named, or learn all again"
)


class Sums:
    """Sums over samples, in float64.

    Products are made in the dtype of the rows, at most 8,192 rows at once, and added in float64.

    Attributes:
        gram: Σ b bᵀ `[d, d]`.
        cross: Σ y bᵀ `[m, d]`.
        squares: Σ y² `[m]`.
        count: the number of samples, or the sum of their weights.
        eps: rounding of the coarsest rows so far.
    """

    def __init__(self, dim: int, outputs: int = 0, device: torch.device | None = None) -> None:
        self.gram = torch.zeros(dim, dim, dtype=torch.float64, device=device)
        self.cross = torch.zeros(outputs, dim, dtype=torch.float64, device=device)
        self.squares = torch.zeros(outputs, dtype=torch.float64, device=device)
        self.count = 0.0
        self.eps = 0.0
        self._torn = False

    @property
    def dim(self) -> int:
        return self.gram.shape[0]

    @property
    def outputs(self) -> int:
        return self.cross.shape[0]

    @property
    def is_torn(self) -> bool:
        return self._torn

    @property
    def device(self) -> torch.device:
        return self.gram.device

    def check(self) -> None:
        """Refuse sums that an interrupted call left half-way."""
        if self._torn:
            raise RuntimeError(TORN)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Whatever interrupts this leaves sums that are refused from then on."""
        self.check()
        self._torn = True
        yield
        self._torn = False

    @exactly()
    def add(
        self, rows: Tensor, targets: Tensor, weights: Tensor | None = None, sign: float = 1.0
    ) -> None:
        """Add samples b `[n, d]` with targets `[n, m]` or labels `[n]`; sign -1 takes them off.

        Labels count as rows of the unit matrix, and must be less than `outputs`.
        """
        labels = targets.ndim == 1
        for start in range(0, len(rows), _ROWS):
            b, y = rows[start : start + _ROWS], targets[start : start + _ROWS]
            w = None if weights is None else weights[start : start + _ROWS].to(b)
            b_w = b if w is None else b * w[:, None]
            wide = None if labels else b_w.double()  # numbers may be far from 0
            if wide is not None:
                last = self.gram[-1] + sign * (wide.mT @ b[:, -1].double())
            for a, rest in _blocks(b.shape[1]):
                product = b_w[:, a].mT @ b[:, rest]
                self.gram[a, rest].add_(product, alpha=sign)
                self.gram[a.stop :, a].add_(product[:, a.stop - a.start :].mT, alpha=sign)
            if wide is None:
                self._add_labels(b_w, y, w, sign)
            else:
                self.gram[-1] = last  # often sums of 1 · b, which tell the mean
                self.gram[:, -1] = last
                self._add_numbers(wide, y, w, sign)
        self.count += sign * (len(rows) if weights is None else float(weights.sum()))
        self.eps = max(self.eps, torch.finfo(rows.dtype).eps)

    def _add_labels(self, b_w: Tensor, y: Tensor, w: Tensor | None, sign: float) -> None:
        present, index = y.unique(return_inverse=True)  # there may be a million classes
        hot = b_w.new_zeros(len(present), len(y))
        hot[index, torch.arange(len(y), device=y.device)] = 1
        self.cross[present] += sign * (hot @ b_w).double()
        hot = hot if w is None else hot * w
        self.squares[present] += sign * hot.sum(1, dtype=torch.float64)

    def _add_numbers(self, b_w: Tensor, y: Tensor, w: Tensor | None, sign: float) -> None:
        y = y.double()
        self.cross.add_(y.mT @ b_w, alpha=sign)
        squares = y.square() if w is None else y.square() * w[:, None]
        self.squares.add_(squares.sum(0), alpha=sign)

    def grow(self, outputs: int) -> None:
        """Have at least so many outputs; new ones were 0 in all samples so far."""
        missing = outputs - self.outputs
        if missing > 0:
            self.cross = torch.cat([self.cross, self.cross.new_zeros(missing, self.dim)])
            self.squares = torch.cat([self.squares, self.squares.new_zeros(missing)])

    def include(self, other: Sums, factor: float = 1.0) -> None:
        """Add other sums, `factor` times."""
        other.check()
        self.grow(other.outputs)
        with self.whole():
            self.gram.add_(other.gram.to(self.device), alpha=factor)
            self.cross[: other.outputs].add_(other.cross.to(self.device), alpha=factor)
            self.squares[: other.outputs].add_(other.squares.to(self.device), alpha=factor)
            self.count += factor * other.count
            self.eps = max(self.eps, other.eps)

    def copy(self) -> Sums:
        self.check()
        made = Sums(0)
        made.gram, made.cross = self.gram.clone(), self.cross.clone()
        made.squares, made.count, made.eps = self.squares.clone(), self.count, self.eps
        return made

    def to(self, device: torch.device) -> None:
        """Move there, in place."""
        self.gram, self.cross = self.gram.to(device), self.cross.to(device)
        self.squares = self.squares.to(device)

    # --- as plain tensors -----------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Those that sums are kept in: they change with them, except for "count"."""
        self.check()
        scalars = torch.tensor([self.count, self.eps], dtype=torch.float64)
        return {
            "gram": self.gram,
            "cross": self.cross,
            "squares": self.squares,
            "count": scalars,
        }

    @staticmethod
    def of(tensors: dict[str, Tensor], dim: int, device: torch.device) -> Sums:
        """From plain tensors of rows with `dim` columns.

        Raises:
            ValueError: they are of other shapes, not finite, or no sums of anything.
        """
        wanted = {"gram", "cross", "squares", "count"}
        if missing := wanted - tensors.keys():
            raise ValueError(f"sums lack {', '.join(sorted(missing))}")
        outputs = tensors["squares"].shape[0] if tensors["squares"].ndim else -1
        shapes = {"gram": (dim, dim), "cross": (outputs, dim), "squares": (outputs,), "count": (2,)}
        for name, shape in shapes.items():
            if tuple(tensors[name].shape) != shape:
                raise ValueError(
                    f"{name} has shape {list(tensors[name].shape)}, expected {list(shape)}"
                )
            if tensors[name].is_meta:
                raise ValueError(f"{name} is on the meta device, without data")
            if not tensors[name].is_floating_point() or not bool(tensors[name].isfinite().all()):
                raise ValueError(f"{name} has entries that are not finite numbers")
        gram = tensors["gram"].double()
        if float((gram - gram.mT).abs().amax()) > 1e-6 * float(gram.abs().amax()):
            raise ValueError("gram is not symmetric")
        if float(gram.diagonal().amin()) < 0 or bool((tensors["squares"] < 0).any()):
            raise ValueError("gram or squares have sums of squares below zero")
        made = Sums(0)
        made.gram, made.cross, made.squares = (
            tensors[name].detach().to(device, torch.float64, copy=True)
            for name in ("gram", "cross", "squares")
        )
        made.count, made.eps = tensors["count"].tolist()
        if made.count <= 0 or not 0 < made.eps < 0.01:
            raise ValueError(f"{made.count:g} samples, rounded to {made.eps:g}, cannot be")
        return made


def _blocks(dim: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of columns, and all from there on."""
    size = max(256, -(-dim // _BLOCKS))
    for start in range(0, dim, size):
        yield slice(start, min(start + size, dim)), slice(start, dim)
