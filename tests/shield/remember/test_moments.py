"""Second moments of rows: exact however they come; their eigenvalues, by formula in tiny groups."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors.layers import OwnedRows, Rows, SecondMoment
from conceptors.shield.remember.moments import Moments, Products, multiplied
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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rows_have_exact_products(device: str, dtype: torch.dtype) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    rows = (normal(0, 1, 8192, 96) + 0.5).to(device, dtype)
    before = torch.get_float32_matmul_precision()
    product, sums = multiplied(list(rows.split(3000, 1)), torch.float64)
    wanted = rows.double().mT @ rows.double()
    assert float((product - wanted).norm() / wanted.norm()) < 1e-6
    torch.testing.assert_close(sums, rows.double().sum(1))
    assert torch.get_float32_matmul_precision() == before


def test_moments_are_the_same_however_the_rows_come() -> None:
    """In large and small pieces, of several weights, dtypes and bias columns."""
    parts: list[Rows | SecondMoment] = [
        Rows(normal(0, 2, 5000, 3), 2.0),
        Rows(normal(1, 2, 10, 3).float(), 3.0),
        OwnedRows(normal(2, 2, 4000, 3), 2.0),
        OwnedRows(normal(3, 2, 700, 3), 2.0),
        Rows(normal(4, 2, 0, 3), 1.0),
    ]
    columns = [0, 1, None, 1, 0]
    moments = Moments(2, 5, 2, torch.empty(0).double(), Products())
    wanted = torch.zeros(2, 5, 5).double()
    for part, column in zip(parts, columns):
        assert isinstance(part, Rows)
        moments.add(part, column)
        wide = torch.cat([part.values.double(), torch.zeros(*part.values.shape[:2], 2)], -1)
        if column is not None:
            wide[..., 3 + column] = 1
        wanted += part.weight * wide.mT @ wide
    moments.flush()
    torch.testing.assert_close(moments.total, wanted)
    assert moments.weight == 10000 + 30 + 8000 + 1400
    total = moments.total.clone()
    moments.flush()
    assert torch.equal(moments.total, total)
