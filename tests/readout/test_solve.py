"""λ without tuning: generalised cross-validation against its definition, and hard data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from conceptors import Readout
from conceptors.readout import Sums
from conceptors.readout.solve import solve
from helpers import eye, normal
from readout.common import DIM, accuracy, assert_close, one_hot, samples


def sums_of(b: Tensor, Y: Tensor) -> Sums:
    sums = Sums(b.shape[1], Y.shape[1])
    sums.add(b, Y)
    return sums


def cross_validated(b: Tensor, Y: Tensor, regularization: float) -> float:
    """Squared errors of samples left out, if each had the average leverage."""
    n = len(b)
    hat = b @ torch.linalg.solve(b.mT @ b + n * regularization * eye(b.shape[1]), b.mT)
    left = (Y - hat @ Y) / (1 - hat.trace() / n)
    return float(left.square().sum() / n)


@pytest.mark.parametrize(("n", "noise"), [(200, 0.1), (200, 3.0), (60, 1.0), (25, 1.0), (8, 0.3)])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_the_grid_is_chosen(n: int, noise: float, seed: int) -> None:
    X = normal(seed, n, 20) * torch.logspace(0, -2, 20)
    b = torch.cat([X, torch.ones_like(X[:, :1])], 1)
    Y = X @ normal(seed + 1, 20, 2) + noise * normal(seed + 2, n, 2)
    solution = solve(sums_of(b, Y))
    size = float(b.square().mean())
    grid = [size * 10.0 ** (e / 2) for e in range(-24, 9)]
    fitted = [
        float((b @ torch.linalg.solve(b.mT @ b + n * g * eye(21), b.mT)).trace()) for g in grid
    ]
    errors = [
        cross_validated(b, Y, g) if trace < 0.999 * n else math.inf
        for g, trace in zip(grid, fitted)
    ]
    best = min(range(len(grid)), key=errors.__getitem__)
    assert solution.regularization == pytest.approx(grid[best])
    assert solution.quota == pytest.approx(fitted[best] / 21)


@pytest.mark.parametrize("seed", range(3))
def test_where_the_largest_output_counts_shrinking_is_undone(seed: int) -> None:
    """λ times the share of the targets that leave-one-out predictions retain."""
    labels = torch.arange(240) % 12
    b = normal(seed, 12, 30)[labels] + 3 * normal(seed + 1, 240, 30)
    sums = sums_of(b, one_hot(labels))
    usual = solve(sums)
    hat = b @ torch.linalg.solve(b.mT @ b + 240 * usual.regularization * eye(30), b.mT)
    h = float(hat.trace()) / 240
    along = float((hat * (labels[:, None] == labels)).sum()) / 240
    retained = 1 - (1 - along) / (1 - h)
    assert 0 < retained < 0.5
    chosen = solve(sums, largest=True).regularization
    assert chosen == pytest.approx(retained * usual.regularization)


_X, _y = samples(0, 60, dtype=torch.float32)
HARD = {
    "one sample": (_X[:1], _y[:1]),
    "two samples": (_X[:2], torch.tensor([0, 1])),
    "fewer than features": (_X[:4], torch.tensor([0, 1, 2, 0])),
    "one class": (_X, torch.zeros_like(_y)),
    "a late class": (_X, torch.full_like(_y, 7)),
    "constant": (torch.full_like(_X, 3.1), _y),
    "zero": (torch.zeros_like(_X), _y),
    "zero columns": (_X * (torch.arange(DIM) % 2), _y),
    "twice the same": (_X[:, :1].expand(-1, DIM), _y),
    "huge and tiny": (_X * torch.logspace(15, -15, DIM), _y),
    "huge": (_X * 1e15, _y),
    "tiny": (_X * 1e-20, _y),
}


@pytest.mark.filterwarnings("ignore:The columns of the inputs differ in scale")
@pytest.mark.parametrize("lift", [0, 30])
@pytest.mark.parametrize("name", HARD)
def test_hard_data_give_finite_scores(name: str, lift: int) -> None:
    X, y = HARD[name]
    readout = Readout(DIM, lift).learn(X, y)
    more, labels = samples(5, dtype=torch.float32)
    for _ in range(2):
        assert bool(readout(X).isfinite().all())
        assert 0 <= readout.quota <= 1
        assert bool(readout.counts[readout.predict(X)].bool().all())
        readout.learn(more * float(X.abs().max().clamp_min(1e-30)), labels)


@pytest.mark.parametrize("lift", [0, 60])
@pytest.mark.parametrize("first", ["one sample", "constant", "zero"])
def test_it_learns_after_a_first_call_without_variance(first: str, lift: int) -> None:
    """A lift that is calibrated by samples that are all alike must not be dead."""
    more, labels = samples(5, 300, dtype=torch.float32)
    readout = Readout(DIM, lift).learn(*HARD[first]).learn(more, labels)
    assert accuracy(readout, more, labels) > 0.9


@pytest.mark.parametrize("lift", [0, 30])
@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_scale_and_offset_of_features_do_not_matter(lift: int, scale: float) -> None:
    X, y = samples(0, 300)
    plain, scaled = Readout(DIM, lift).learn(X, y), Readout(DIM, lift).learn(scale * X, y)
    assert scaled.regularization == pytest.approx(plain.regularization, rel=1e-5)
    assert_close(scaled(scale * X), plain(X), 1e-5)
    moved = Readout(DIM, lift).learn((X + 1e6).float(), y)
    assert accuracy(moved, (X + 1e6).float(), plain.predict(X)) > 0.95


@pytest.mark.parametrize("lift", [0, 100])
def test_columns_of_very_different_scale_are_reported_once(lift: int) -> None:
    X = normal(0, 200, 10) * torch.logspace(-8, 8, 10)
    y = (X.sum(1) > 0).long()
    readout = Readout(10, lift)
    with pytest.warns(UserWarning, match=r"factor of 1e\+16.*StandardScaler") as caught:
        readout.learn(X, y)
    assert [warning.filename for warning in caught] == [__file__]
    readout.learn(X, y)  # warnings are errors
    readout.fresh().learn(X, y)


def test_features_far_larger_than_the_first_ones_do_not_overflow() -> None:
    """Their squares overflow float32."""
    X, y = samples(0, dtype=torch.float32)
    readout = Readout(DIM).learn(X, y).learn(1e25 * X, y)
    assert bool(readout(X).isfinite().all())
    with pytest.raises(ValueError, match=r"features reach .*e\+20.: .* overflow"):
        readout.learn(1e200 * X.double(), y)
    assert readout.n_samples == 160
