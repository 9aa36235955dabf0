"""What ridge regression needs to know of its data: sums over samples.

For rows b `[n, d]` and targets y `[n, m]`: Σ b bᵀ, Σ y bᵀ, Σ y² and the number of samples. Any
order of samples, batches and machines gives the same sums.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from conceptors._internal import checks
from conceptors._internal.precision import exactly
from conceptors.moments.correlation import add_products_

_ROWS = 8192  # rows multiplied at once: longer sums in float32 would lose precision
_LARGEST_FLOAT32, _LARGEST = 1e15, 1e150  # sums of many squares of these do not overflow


class Sums:
    """Sums over samples, in float64: `gram` Σ b bᵀ, `cross` Σ y bᵀ, `squares` Σ y², and `count`.

    Products of float32 rows are computed in float32 and added in float64. For labels, `squares` is
    the number of samples of each class.
    """

    def __init__(self, dim: int, outputs: int = 0, device: torch.device | None = None) -> None:
        self.gram = torch.zeros(dim, dim, dtype=torch.float64, device=device)
        self.cross = torch.zeros(outputs, dim, dtype=torch.float64, device=device)
        self.squares = torch.zeros(outputs, dtype=torch.float64, device=device)
        self.count = 0.0
        self.eps = 0.0  # rounding error of the coarsest rows so far

    @property
    def dim(self) -> int:
        return len(self.gram)

    @property
    def outputs(self) -> int:
        return len(self.squares)

    @exactly()
    def add(self, rows: Tensor, targets: Tensor) -> None:
        """Add samples b `[n, d]` with numbers `[n, m]` or labels `[n]`, in place.

        Labels count as rows of the unit matrix; new ones add outputs. Nothing is added if rows or
        targets are not finite, or if their squares overflow.
        """
        if not len(rows):
            return
        eps, rows = torch.finfo(rows.dtype).eps, _squarable(rows, "features")
        targets = _squarable(targets, "targets") if targets.is_floating_point() else targets
        for b, y in zip(rows.split(_ROWS), targets.split(_ROWS)):
            outputs, cross, squares, last = _target_sums(b, y)
            last = None if last is None else self.gram[-1] + last
            add_products_(self.gram, b, b)
            if last is not None:
                self.gram[-1] = self.gram[:, -1] = last
            self.grow(int(outputs[-1]) + 1)
            self.cross[outputs] += cross
            self.squares[outputs] += squares
            self.count += len(b)
            self.eps = max(self.eps, eps)

    def grow(self, outputs: int) -> None:
        """Add outputs up to this number; the new ones were 0 in all samples so far."""
        missing = outputs - self.outputs
        if missing > 0:
            self.cross = torch.cat([self.cross, self.cross.new_zeros(missing, self.dim)])
            self.squares = torch.cat([self.squares, self.squares.new_zeros(missing)])

    def include(self, other: Sums) -> None:
        """Add other sums."""
        self.grow(other.outputs)
        self.gram += other.gram.to(self.gram)
        self.cross[: other.outputs] += other.cross.to(self.cross)
        self.squares[: other.outputs] += other.squares.to(self.squares)
        self.count += other.count
        self.eps = max(self.eps, other.eps)

    def with_targets(self, cross: Tensor, squares: Tensor) -> Sums:
        """The same samples with other targets; Σ b bᵀ is shared."""
        changed = copy.copy(self)
        changed.cross, changed.squares = cross, squares
        return changed

    def columns(self, chosen: Tensor) -> Sums:
        """The same samples with these columns of their rows alone."""
        part = Sums(len(chosen), device=self.cross.device)
        part.gram, part.count, part.eps = self.gram[chosen][:, chosen], self.count, self.eps
        return part.with_targets(self.cross[:, chosen], self.squares)

    def to(self, device: torch.device) -> None:
        """Move to a device, in place."""
        sums = (self.gram, self.cross, self.squares)
        self.gram, self.cross, self.squares = (tensor.to(device) for tensor in sums)

    def tensors(self) -> dict[str, Tensor]:
        """Everything, as tensors that change with the sums."""
        scalars = torch.tensor([self.count, self.eps], dtype=torch.float64)
        return {"gram": self.gram, "cross": self.cross, "squares": self.squares, "count": scalars}

    @staticmethod
    def from_tensors(tensors: dict[str, Any], dim: int, device: torch.device) -> Sums:
        """The sums that `tensors` saved, of rows with `dim` columns. Refuses impossible ones."""
        squares = tensors.get("squares")
        sums = Sums(dim, squares.numel() if isinstance(squares, Tensor) else 0, device)
        read = sums.tensors()
        for name, tensor in read.items():
            if not _is_finite(tensors.get(name), tensor.shape):
                raise ValueError(
                    f"{name} must be a dense tensor of finite floats, of shape {[*tensor.shape]}"
                )
            tensor.copy_(tensors[name])
        gram, (sums.count, sums.eps) = sums.gram, read["count"].tolist()
        if float((gram - gram.mT).abs().amax()) > 1e-6 * float(gram.abs().amax()):
            raise ValueError("gram is not symmetric")
        if bool((gram.diagonal() < 0).any()) or bool((sums.squares < 0).any()):
            raise ValueError("gram or squares have sums of squares below zero")
        if sums.count <= 0 or not 0 < sums.eps < 0.01:
            raise ValueError(
                f"{sums.count:g} samples with rounding error {sums.eps:g} are impossible"
            )
        return sums


def _is_finite(value: Any, shape: tuple[int, ...]) -> bool:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta:
        return False
    is_float = value.is_floating_point() and value.shape == shape
    return is_float and bool(value.isfinite().all())


def _squarable(x: Tensor, name: str) -> Tensor:
    """`x`, in float64 if sums of its squares would overflow float32."""
    low, high = x.aminmax()
    largest = float(torch.maximum(-low, high))
    if not largest <= _LARGEST:
        checks.finite(x, name)
        raise ValueError(f"{name} reach {largest:.3g}: sums of their squares overflow; scale them")
    return x.double() if largest > _LARGEST_FLOAT32 else x


def _target_sums(b: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The outputs that targets y are of, Σ y bᵀ and Σ y² of these, and Σ b bᵀ's last row.

    The last row, usually Σ b, gives the mean. It is needed in float64 for numbers, which may be far
    from 0, and is None for labels.
    """
    if y.ndim == 2:
        wide, y = b.double(), y.double()
        outputs = torch.arange(y.shape[1], device=y.device)
        return outputs, y.mT @ wide, y.square().sum(0), wide[:, -1] @ wide
    outputs, index, counts = y.unique(return_inverse=True, return_counts=True)  # may be many
    one_hot = b.new_zeros(len(outputs), len(y))
    one_hot[index, torch.arange(len(y), device=y.device)] = 1
    return outputs, one_hot @ b, counts.double(), None
