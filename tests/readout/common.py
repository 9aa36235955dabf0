"""What tests of readouts share: data, the direct solution, and states to compare."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from conceptors import Readout
from helpers import eye, normal

DIM, CLASSES = 6, 4


def samples(
    seed: int, count: int = 80, classes: int = CLASSES, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Features with a class each, around centres that are the same for every seed."""
    y = torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))
    centres = 2 * normal(99, classes, DIM)
    return (centres[y] + normal(seed + 1, count, DIM)).to(dtype), y


def one_hot(y: Tensor, classes: int | None = None) -> Tensor:
    return torch.nn.functional.one_hot(y, classes or int(y.max()) + 1).double()


def rows_of(readout: Readout, X: Tensor) -> Tensor:
    """b = [h; 1] in float64."""
    h: Tensor = readout.lift(X).double()
    return torch.cat([h, torch.ones_like(h[:, :1])], 1)


def direct(b: Tensor, Y: Tensor, regularization: float, weights: Tensor | None = None) -> Tensor:
    """W `[m, d]` of ridge regression on all samples at once."""
    w = torch.ones(len(b), dtype=b.dtype) if weights is None else weights
    R, K = (b * w[:, None]).mT @ b / w.sum(), (Y * w[:, None]).mT @ b / w.sum()
    found: Tensor = torch.linalg.solve(R + regularization * eye(b.shape[1]), K.mT).mT
    return found


def around_mean(b: Tensor, Y: Tensor, regularization: float) -> Tensor:
    """The same for numbers: less their mean, which the weight of the 1 in b gives back."""
    found = direct(b, Y - Y.mean(0), regularization)
    found[:, -1] += Y.mean(0)
    return found


def state(readout: torch.nn.Module) -> dict[str, Any]:
    return copy.deepcopy(readout.state_dict())


def assert_same_state(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Bit for bit."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


def assert_close(found: Tensor, wanted: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        found.double(), wanted.double(), rtol=tolerance, atol=tolerance, check_device=False
    )
