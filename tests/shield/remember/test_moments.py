"""Second moments of rows: their eigenvalues, also by formula where groups are tiny."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors.layers import Rows
from conceptors.shield.remember.moments import Moments
from helpers import normal


def moments(rows: Tensor, biases: int = 0) -> Moments:
    """Of rows `[g, n, d]`, the first bias column with all of them."""
    groups, _, dim = rows.shape
    found = Moments(groups, dim + biases, biases, torch.zeros((), dtype=torch.float64))
    found.add(Rows(rows), 0 if biases else None)
    found.flush()
    return found


def check(found: Moments) -> None:
    """Against the library, to rounding of the largest."""
    values = found.eigenvalues()
    wanted = torch.linalg.eigvalsh(found.correlation()).flip(-1)
    scale = wanted[:, :1].clamp_min(1e-300)
    assert values.shape == wanted.shape
    assert values.dtype == torch.float64
    assert bool((values >= 0).all())
    assert bool((values.diff(dim=-1) <= 0).all())
    torch.testing.assert_close(values / scale, wanted / scale, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_eigenvalues_of_many_groups(dim: int, size: float) -> None:
    check(moments(size * normal(0, 1000, 7, dim)))


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_eigenvalues_of_groups_that_lack_directions(dim: int) -> None:
    """One row, no row but zeros, and rows along one direction."""
    check(moments(normal(0, 300, 1, dim)))
    check(moments(torch.zeros(3, 4, dim, dtype=torch.float64)))
    check(moments(normal(1, 300, 5, 1) * normal(2, 300, 1, dim)))


def test_eigenvalues_of_norm_layers_rows() -> None:
    """A number and the constant 1 of the bias; with equal numbers they are one direction."""
    check(moments(normal(0, 500, 8, 1), biases=1))
    found = moments(torch.full((2, 8, 1), 3.0, dtype=torch.float64), biases=1)
    check(found)
    torch.testing.assert_close(found.eigenvalues(), torch.tensor([[10.0, 0.0]] * 2).double())


def test_eigenvalues_of_diagonal_and_equal_ones() -> None:
    found = Moments(3, 2, 0, torch.zeros((), dtype=torch.float64))
    found.total = torch.tensor([[[1.0, 0], [0, 4]], [[2, 0], [0, 2]], [[1, -1], [-1, 1]]]).double()
    found.weight = 1.0
    assert found.eigenvalues().tolist() == [[4, 1], [2, 2], [2, 0]]
