"""λ without tuning: generalised cross-validation against its definition, and hard data."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from torch import Tensor

from conceptors import Readout
from conceptors.readout.solve import solve
from conceptors.readout.sums import Sums
from readout.common import DIM, assert_close, one_hot, rows_of, samples
from helpers import eye, normal


def sums_of(b: Tensor, Y: Tensor) -> Sums:
    found = Sums(b.shape[1], Y.shape[1])
    found.add(b, Y)
    return found


def cross_validated(b: Tensor, Y: Tensor, regularization: float) -> float:
    """Squared errors of samples left out, if each had the average leverage."""
    n = len(b)
    hat = b @ torch.linalg.solve(b.mT @ b + n * regularization * eye(b.shape[1]), b.mT)
    left = (Y - hat @ Y) / (1 - hat.trace() / n)
    return float(left.square().sum() / n)


def test_cross_validation_leaves_one_out() -> None:
    """Where all samples have the same leverage, GCV is the error on samples left out, exactly."""
    turn = 2 * math.pi * torch.arange(12, dtype=torch.float64) / 12
    b, Y = torch.stack([turn.cos(), turn.sin(), torch.ones_like(turn)], 1), normal(1, 12, 2)
    error = 0.0
    for i in range(12):
        rest = torch.arange(12) != i
        W = torch.linalg.solve(b[rest].mT @ b[rest] + 12 * 0.1 * eye(3), b[rest].mT @ Y[rest])
        error += float((Y[i] - b[i] @ W).square().sum()) / 12
    assert cross_validated(b, Y, 0.1) == pytest.approx(error)


@pytest.mark.parametrize(("n", "noise"), [(200, 0.1), (200, 3.0), (60, 1.0), (25, 1.0), (8, 0.3)])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_the_grid_is_chosen(n: int, noise: float, seed: int) -> None:
    X = normal(seed, n, 20) * torch.logspace(0, -2, 20)
    b = torch.cat([X, torch.ones_like(X[:, :1])], 1)
    Y = X @ normal(seed + 1, 20, 2) + noise * normal(seed + 2, n, 2)
    found = solve(sums_of(b, Y))
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
    assert found.regularization == pytest.approx(grid[best])
    assert found.quota == pytest.approx(fitted[best] / 21)
    assert found.aperture == pytest.approx(found.regularization**-0.5)


@pytest.mark.parametrize("seed", range(3))
def test_where_the_largest_output_counts_shrinking_is_undone(seed: int) -> None:
    """λ times the share of the targets that leave-one-out predictions keep."""
    labels = torch.arange(240) % 12
    b = normal(seed, 12, 30)[labels] + 3 * normal(seed + 1, 240, 30)
    sums = sums_of(b, torch.eye(12, dtype=torch.float64)[labels])
    usual = solve(sums)
    hat = b @ torch.linalg.solve(b.mT @ b + 240 * usual.regularization * eye(30), b.mT)
    h = float(hat.trace()) / 240
    kept = 1 - (1 - float(hat.diagonal().mean() + _alike(hat, labels) / 240)) / (1 - h)
    assert 0 < kept < 0.5
    found = solve(sums, largest=True).regularization
    assert found == pytest.approx(kept * usual.regularization)


def _alike(hat: Tensor, labels: Tensor) -> float:
    """What samples of the same class give each other."""
    same = (labels[:, None] == labels).double()
    return float((hat * same).sum() - hat.trace())


def test_traces_of_wide_sums_are_estimated_well() -> None:
    X = normal(0, 900, 600) * torch.logspace(0, -2, 600)
    found = solve(sums_of(X, normal(1, 900, 1)), 1e-2)
    C = torch.linalg.solve(X.mT @ X / 900 + 1e-2 * eye(600), X.mT @ X / 900)
    assert found.quota == pytest.approx(float(C.trace()) / 600, abs=0.02)


def hard(name: str) -> tuple[Tensor, Tensor]:
    X, y = samples(0, 60, dtype=torch.float32)
    return {
        "one sample": (X[:1], y[:1]),
        "two samples": (X[:2], torch.tensor([0, 1])),
        "fewer than features": (X[:4], torch.tensor([0, 1, 2, 0])),
        "one class": (X, torch.zeros_like(y)),
        "a late class": (X, torch.full_like(y, 7)),
        "constant": (torch.full_like(X, 3.1), y),
        "zero": (torch.zeros_like(X), y),
        "zero columns": (X * (torch.arange(DIM) % 2), y),
        "twice the same": (X[:, :1].expand(-1, DIM), y),
        "the same sample": (X[:1].expand(60, -1), y),
        "tiny columns": (X * torch.logspace(0, -30, DIM), y),
        "huge and tiny": (X * torch.logspace(15, -15, DIM), y),
        "huge": (X * 1e15, y),
        "tiny": (X * 1e-20, y),
    }[name]


HARD = [
    "one sample", "two samples", "fewer than features", "one class", "a late class", "constant",
    "zero", "zero columns", "twice the same", "the same sample", "tiny columns", "huge and tiny",
    "huge", "tiny",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:The columns of the inputs differ in scale")
@pytest.mark.parametrize("lift", [0, 30])
@pytest.mark.parametrize("name", HARD)
def test_hard_data_give_finite_scores(name: str, lift: int) -> None:
    X, y = hard(name)
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
    """A lift that is fixed by samples that are all alike must not be dead."""
    X, y = hard(first)
    more, labels = samples(5, 300, dtype=torch.float32)
    readout = Readout(DIM, lift).learn(X, y).learn(more, labels)
    assert float((readout.predict(more) == labels).float().mean()) > 0.9


@pytest.mark.parametrize("lift", [0, 30])
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e4, 1e8])
def test_the_scale_of_features_does_not_matter(lift: int, scale: float) -> None:
    X, y = samples(0, 300)
    plain, scaled = Readout(DIM, lift).learn(X, y), Readout(DIM, lift).learn(scale * X, y)
    assert scaled.regularization == pytest.approx(plain.regularization, rel=1e-5)
    assert_close(scaled(scale * X), plain(X), 1e-5)


@pytest.mark.parametrize("lift", [0, 30])
def test_an_offset_of_features_does_not_matter_much(lift: int) -> None:
    X, y = samples(0, 300, dtype=torch.float32)
    plain, moved = Readout(DIM, lift).learn(X, y), Readout(DIM, lift).learn(X + 1e6, y)
    assert float((moved.predict(X + 1e6) == plain.predict(X)).float().mean()) > 0.95


def test_a_regularization_below_rounding_is_refused() -> None:
    X = normal(0, 20, 1).float().expand(-1, DIM).contiguous()
    readout = Readout(DIM, regularization=1e-30).learn(X, normal(1, 20))
    with pytest.raises(ValueError, match=r"regularization 1e-30 is too small .* raise it"):
        readout.predict(X)
    assert bool(Readout(DIM, regularization=1e300).learn(X, normal(1, 20))(X).isfinite().all())


def test_threads_that_solve_at_once_leave_the_sums_alone() -> None:
    X, y = samples(0, 400)
    readout = Readout(DIM, 300).learn(X, y)
    before = readout.state_dict()["sums.gram"]
    found: list[Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(readout.predict(X))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(readout.state_dict()["sums.gram"], before)
    assert len(found) == 6
    assert all(torch.equal(found[0], other) for other in found)


def test_the_hat_matrix_of_a_readout() -> None:
    """GCV of the chosen λ is no worse than that of its neighbours, on what the readout sees."""
    X, y = samples(0, 120)
    readout = Readout(DIM, 40).learn(X, y)
    b, Y = rows_of(readout, X), one_hot(y)
    chosen = readout.regularization
    assert cross_validated(b, Y, chosen) <= min(
        cross_validated(b, Y, chosen * factor) for factor in (0.1, 10.0)
    )
