"""Weights are those of ridge regression on all samples at once, however the samples came."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from conceptors import Readout
from conceptors.readout.sums import Sums
from readout.common import (
    CLASSES,
    DIM,
    around_mean,
    assert_close,
    direct,
    one_hot,
    rows_of,
    samples,
)
from helpers import eye, normal

LAMBDA = 1e-2


@pytest.mark.parametrize("lift", [0, 20])
@pytest.mark.parametrize("kind", ["labels", "number", "numbers"])
def test_weights_are_the_direct_solution(lift: int, kind: str) -> None:
    X, labels = samples(0)
    y = {"labels": labels, "number": normal(7, 80), "numbers": normal(8, 80, 3)}[kind]
    readout = Readout(DIM, lift, regularization=LAMBDA).learn(X, y)
    b = rows_of(readout, X)
    Y = one_hot(y) if kind == "labels" else y.reshape(80, -1)
    W = (direct if kind == "labels" else around_mean)(b, Y, LAMBDA)
    assert_close(readout.solution.weights, W)
    scores = b @ W.mT
    assert_close(readout(X), scores[:, 0] if kind == "number" else scores)
    predicted = readout.predict(X)
    assert_close(predicted, scores.argmax(1) if kind == "labels" else readout(X))
    C = torch.linalg.inv(b.mT @ b / 80 + LAMBDA * eye(b.shape[1])) @ (b.mT @ b / 80)
    assert readout.quota == pytest.approx(float(C.trace()) / b.shape[1])
    assert readout.n_samples == 80


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_neither_order_nor_batches_nor_tasks_matter(order: list[int], size: int) -> None:
    X, y = samples(1)
    whole = Readout(DIM, 15).learn(X, y)
    parted = whole.fresh()
    for label in order:
        rows = X[y == label]
        for i, part in enumerate(rows.split(size)):
            task = f"class {label}" if i % 2 else None
            parted.learn(part, torch.full((len(part),), label), task)
    assert parted.regularization == pytest.approx(whole.regularization)
    assert_close(parted.solution.weights, whole.solution.weights)
    assert torch.equal(parted.predict(X), y) == torch.equal(whole.predict(X), y)
    assert torch.equal(parted.counts, y.bincount())


def test_when_it_is_solved_does_not_matter() -> None:
    """λ is sought anew each time, not from where the last search ended."""
    noise, plain = normal(3, 30, DIM), torch.randint(2, (30,))
    often = Readout(DIM, 200).calibrate(normal(4, 100, DIM))
    once = often.fresh()
    for seed in range(3):
        X, y = samples(seed, 200)
        for readout in (often, once):
            readout.learn(noise, plain).learn(X, y)
        assert often.regularization > 0
    assert often.regularization == once.regularization
    loaded = Readout(DIM, 200)
    loaded.load_state_dict(often.state_dict())
    assert loaded.regularization == often.regularization


def test_float32_is_as_good_as_its_products() -> None:
    """Each entry of Σ b bᵀ is off by at most γ Σ |b| |b|ᵀ, with γ = n ε for at most 8,192 rows.

    In practice errors of additions cancel, and a hundredth of that is not exceeded.
    """
    n = 20_000
    b, y = normal(0, n, 40).float(), torch.randint(5, (n,))
    sums, exact = Sums(40, 5), Sums(40, 5)
    sums.add(b, y)
    exact.add(b.double(), y)
    gamma = 8192 * torch.finfo(torch.float32).eps
    bound = b.double().abs().mT @ b.double().abs()
    assert bool(((sums.gram - exact.gram).abs() <= gamma / 100 * bound).all())
    across = one_hot(y).mT @ b.double().abs()
    assert bool(((sums.cross - exact.cross).abs() <= gamma / 100 * across).all())
    assert torch.equal(sums.squares, exact.squares)
    assert torch.equal(sums.gram, sums.gram.mT)
    assert sums.eps == torch.finfo(torch.float32).eps


@pytest.mark.parametrize("weights", [None, torch.rand(50, dtype=torch.float64)])
def test_labels_are_rows_of_the_unit_matrix(weights: Tensor | None) -> None:
    b, y = normal(0, 50, 300), torch.randint(9, (50,))
    labels, numbers = Sums(300, 9), Sums(300, 9)
    labels.add(b, y, weights)
    numbers.add(b, one_hot(y, 9), weights)
    for name, value in numbers.tensors().items():
        assert_close(labels.tensors()[name], value, 1e-12)
    w = torch.ones(50, dtype=torch.float64) if weights is None else weights
    assert_close(labels.gram, (b * w[:, None]).mT @ b, 1e-12)
    labels.add(b, y, weights, sign=-1.0)
    assert float(labels.gram.abs().max()) < 1e-12
    assert abs(labels.count) < 1e-12


def test_a_million_classes_take_no_more_than_their_weights() -> None:
    readout = Readout(3, regularization=1.0).learn(normal(0, 40, 3), torch.arange(40))
    readout.learn(normal(1, 5000, 3), torch.randint(900_000, (5000,)).clamp_min(1))
    readout.learn(normal(2, 1, 3), torch.tensor([999_999]))
    assert readout.counts.shape == (1_000_000,)
    assert int(readout.counts.sum()) == 5041
    unseen = readout.counts == 0
    assert not bool(unseen[readout.predict(normal(3, 9, 3))].any())


def test_targets_far_from_zero_keep_their_digits() -> None:
    X = normal(0, 500, DIM).float()
    y = 1e6 + X.double().sum(1)
    for options in ({}, {"regularization": 1e-10}):
        readout = Readout(DIM, **options).learn(X, y)  # type: ignore[arg-type]
        assert float((readout(X.double()) - y).abs().max()) < 0.2  # of a deviation of 2.4


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 0.01)])
def test_an_offset_of_targets_does_not_matter(dtype: torch.dtype, tolerance: float) -> None:
    X, y = normal(0, 150, DIM).to(dtype), normal(1, 150)
    plain, moved = Readout(DIM, 200).learn(X, y), Readout(DIM, 200).learn(X, y + 1e6)
    assert moved.regularization == plain.regularization
    assert_close(moved(X.double()) - 1e6, plain(X.double()), tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_added_in_full(dtype: torch.dtype) -> None:
    X, y = samples(0)
    half = Readout(DIM, regularization=LAMBDA).learn(X.to(dtype), y)
    full = Readout(DIM, regularization=LAMBDA).learn(X.to(dtype).float(), y)
    assert_close(half.solution.weights, full.solution.weights)
    assert half(X.to(dtype)).shape == (80, CLASSES)


def test_dtypes_may_change_between_calls() -> None:
    X, y = samples(0)
    for lift in (0, 10):
        readout = Readout(DIM, lift, regularization=LAMBDA).learn(X.float(), y)
        readout.learn(X, y)
        assert readout(X).dtype == torch.float64
        assert_close(readout(X.float()), readout(X), 1e-5)
        reverse = Readout(DIM, lift, regularization=LAMBDA).learn(X, y).learn(X.float(), y)
        assert_close(reverse.solution.weights, readout.solution.weights, 1e-4)


def test_autocast_changes_nothing() -> None:
    X, y = samples(0, dtype=torch.float32)
    plain = Readout(DIM, 12).learn(X, y)
    with torch.autocast("cpu", torch.bfloat16):
        cast = Readout(DIM, 12).learn(X, y)
    assert torch.equal(cast.solution.weights, plain.solution.weights)


def test_learning_in_inference_mode_can_go_on_outside() -> None:
    X, y = samples(0, dtype=torch.float32)
    with torch.inference_mode():
        readout = Readout(DIM, 12).learn(2 * X, y)
        readout.predict(X)
    readout.learn(2 * X, y, task="outside")
    assert readout.n_samples == 160
    with torch.inference_mode():
        readout.predict(X)
    readout(X.requires_grad_()).sum().backward()
    assert X.grad is not None


@pytest.mark.parametrize("lift", [0, 12])
def test_gradients_reach_the_features(lift: int) -> None:
    X, y = samples(0)
    readout = Readout(DIM, lift).learn(X, y)
    X.requires_grad_()
    assert torch.autograd.gradcheck(readout, X[:3])
    readout(X).square().sum().backward()
    assert X.grad is not None
    assert bool(X.grad.isfinite().all())
    assert float(X.grad.abs().sum()) > 0
    assert not any(p.requires_grad for p in readout.parameters())


def test_a_module_may_be_the_lift() -> None:
    X, y = samples(0, dtype=torch.float32)
    lift = nn.Linear(DIM, 5).requires_grad_(False)
    readout = Readout(DIM, lift, regularization=LAMBDA).learn(X, y)
    assert_close(readout.solution.weights, direct(rows_of(readout, X), one_hot(y), LAMBDA), 1e-4)
