"""What ridge regression needs to know of its data: sums over samples.

For rows b `[n, d]` and targets y `[n, m]`: Σ b bᵀ, Σ y bᵀ, Σ y² and the number of samples. Any
order of samples, batches and machines gives the same sums.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch import distributed as dist

from conceptors.moments import Correlation


class Sums:
    """Sums over samples, in float64: `gram`, `cross`, `squares` and `count`.

    For labels, `squares` is the number of samples of each class.
    """

    def __init__(self, dim: int, outputs: int = 0, device: torch.device | None = None) -> None:
        self._moments = Correlation(dim, device=device)
        self.cross = torch.zeros(outputs, dim, dtype=torch.float64, device=device)
        self.squares = torch.zeros(outputs, dtype=torch.float64, device=device)
        self.eps = 0.0  # rounding error of the coarsest rows so far

    @property
    def gram(self) -> Tensor:
        """Σ b bᵀ `[d, d]`."""
        return self._moments.sum

    @property
    def count(self) -> float:
        """The number of samples."""
        return self._moments.weight

    @property
    def dim(self) -> int:
        return self._moments.dim

    @property
    def outputs(self) -> int:
        return len(self.squares)

    @property
    def device(self) -> torch.device:
        return self.gram.device

    @torch.no_grad()
    def add(self, rows: Tensor, targets: Tensor) -> None:
        """Add samples b `[n, d]` with numbers `[n, m]` or labels `[n]`.

        Labels count as rows of the unit matrix, and must be less than `outputs`. Rows are
        converted to float64, so add large data in parts.
        """
        b = rows.double()
        self._moments.update(b)
        outputs, y = _as_numbers(targets)
        self.cross[outputs] += y.mT @ b
        self.squares[outputs] += y.square().sum(0)
        self.eps = max(self.eps, torch.finfo(rows.dtype).eps)

    def grow(self, outputs: int) -> None:
        """Add outputs up to this number; the new ones were 0 in all samples so far."""
        missing = outputs - self.outputs
        if missing > 0:
            self.cross = torch.cat([self.cross, self.cross.new_zeros(missing, self.dim)])
            self.squares = torch.cat([self.squares, self.squares.new_zeros(missing)])

    def include(self, other: Sums, factor: float = 1.0) -> None:
        """Add other sums, `factor` times."""
        self.grow(other.outputs)
        self._moments.sum.add_(other.gram.to(self.device), alpha=factor)
        self._moments.weight += factor * other.count
        self.cross[: other.outputs].add_(other.cross.to(self.device), alpha=factor)
        self.squares[: other.outputs].add_(other.squares.to(self.device), alpha=factor)
        self.eps = max(self.eps, other.eps)

    def copy(self) -> Sums:
        return copy.deepcopy(self)

    def with_targets(self, cross: Tensor, squares: Tensor) -> Sums:
        """The same samples with other targets; Σ b bᵀ is shared."""
        changed = copy.copy(self)
        changed.cross, changed.squares = cross, squares
        return changed

    def to(self, device: torch.device) -> None:
        """Move to a device, in place."""
        self._moments.sum = self.gram.to(device)
        self.cross, self.squares = self.cross.to(device), self.squares.to(device)

    def all_reduce(self, group: object = None) -> None:
        """Add the sums of all processes, which must have the same shapes."""
        self._moments.all_reduce(group)
        for tensor in (self.cross, self.squares):
            dist.all_reduce(tensor, group=group)
        eps = torch.tensor(self.eps, dtype=torch.float64, device=self.device)
        dist.all_reduce(eps, dist.ReduceOp.MAX, group=group)
        self.eps = float(eps)

    # --- as plain tensors -----------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything, as tensors that change with the sums."""
        scalars = torch.tensor([self.count, self.eps], dtype=torch.float64)
        return {"gram": self.gram, "cross": self.cross, "squares": self.squares, "count": scalars}

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor], dim: int, device: torch.device) -> Sums:
        """The sums that `tensors` saved, of rows with `dim` columns.

        Raises:
            ValueError: shapes or values are impossible.
        """
        if missing := {"gram", "cross", "squares", "count"} - tensors.keys():
            raise ValueError(f"sums lack {', '.join(sorted(missing))}")
        outputs = tensors["squares"].numel()
        shapes = {"gram": (dim, dim), "cross": (outputs, dim), "squares": (outputs,), "count": (2,)}
        for name, shape in shapes.items():
            value = tensors[name]
            is_dense = value.layout == torch.strided and not value.is_meta
            if not is_dense or not value.is_floating_point() or tuple(value.shape) != shape:
                raise ValueError(f"{name} must be a dense tensor of floats, of shape {list(shape)}")
            if not bool(value.isfinite().all()):
                raise ValueError(f"{name} has entries that are not finite numbers")
        gram, squares = tensors["gram"].double(), tensors["squares"]
        if float((gram - gram.mT).abs().amax()) > 1e-6 * float(gram.abs().amax()):
            raise ValueError("gram is not symmetric")
        if float(gram.diagonal().amin()) < 0 or bool((squares < 0).any()):
            raise ValueError("gram or squares have sums of squares below zero")
        count, eps = tensors["count"].tolist()
        if count <= 0 or not 0 < eps < 0.01:
            raise ValueError(f"{count:g} samples with rounding error {eps:g} are impossible")
        sums = Sums(dim, outputs, device)
        sums.gram.copy_(gram)
        sums.cross.copy_(tensors["cross"])
        sums.squares.copy_(squares)
        sums._moments.weight, sums._moments.count, sums.eps = count, round(count), eps
        return sums


def _as_numbers(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers, or labels as rows of the unit matrix, and the outputs that they are of."""
    if targets.ndim == 2:
        return torch.arange(targets.shape[1], device=targets.device), targets.double()
    present, index = targets.unique(return_inverse=True)  # there may be a million classes
    one_hot = torch.zeros(len(targets), len(present), dtype=torch.float64, device=targets.device)
    one_hot[torch.arange(len(targets), device=targets.device), index] = 1
    return present, one_hot
