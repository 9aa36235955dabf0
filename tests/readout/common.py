"""What tests of readouts share: data, the direct solution, and states to compare."""

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


def direct(b: Tensor, Y: Tensor, regularization: float) -> Tensor:
    """W `[m, d]` of ridge regression on all samples at once."""
    R, K = b.mT @ b / len(b), Y.mT @ b / len(b)
    weights: Tensor = torch.linalg.solve(R + regularization * eye(b.shape[1]), K.mT).mT
    return weights


def accuracy(readout: Readout, X: Tensor, y: Tensor) -> float:
    return float((readout.predict(X) == y).double().mean())


def state(module: torch.nn.Module) -> dict[str, Any]:
    return copy.deepcopy(module.state_dict())


def assert_same_state(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Bit for bit."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        assert torch.equal(actual[name], value), name


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=tolerance, atol=tolerance, check_device=False
    )
