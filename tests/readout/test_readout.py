"""Weights are those of ridge regression on all samples at once; λ needs no tuning."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import Readout
from conceptors.readout import Sums
from conceptors.readout.solve import likelihoods, solve
from helpers import eye, normal
from readout.common import (
    CLASSES,
    DIM,
    accuracy,
    assert_close,
    assert_same_state,
    direct,
    one_hot,
    rows_of,
    samples,
    state,
)

LAMBDA = 1e-2
steps = st.one_of(
    st.tuples(st.integers(0, 99), st.sampled_from([1, 2, 30])),  # learn samples of a seed
    st.sampled_from(["solve", "save", "other"]),
)


@given(st.lists(steps, min_size=1, max_size=9), st.sampled_from([0, 7]))
def test_any_history_is_the_direct_solution(history: list[Any], lift: int) -> None:
    """Two readouts learn, answer, are saved and loaded; then they are added up."""
    base = Readout(DIM, lift, regularization=LAMBDA).calibrate(samples(0)[0])
    readouts, seen = [base.fresh(), base.fresh()], [samples(0, 0)]
    for step in history:
        if isinstance(step, tuple):
            seen.append(samples(step[0], step[1], classes=3))
            readouts[0].learn(*seen[-1])
        elif step == "solve" and readouts[0].n_samples:
            assert 0 <= readouts[0].solution.quota <= 1
        elif step == "save":
            saved = readouts[0].state_dict()
            readouts[0] = Readout(DIM, lift, regularization=LAMBDA)
            readouts[0].load_state_dict(saved)
        elif step == "other":
            readouts.reverse()
    total, (X, y) = readouts[0] + readouts[1], (torch.cat(parts) for parts in zip(*seen))
    assert total.n_samples == len(X)
    if len(X):
        b, n = rows_of(total, X), len(X)
        W = direct(b, one_hot(y), LAMBDA)
        assert_close(total.solution.weights, W, 1e-6)
        assert_close(total(X), b @ W.mT, 1e-6)
        assert torch.equal(total.predict(X), total(X).argmax(1))
        C = torch.linalg.inv(b.mT @ b / n + LAMBDA * eye(b.shape[1])) @ (b.mT @ b / n)
        assert total.solution.quota == pytest.approx(float(C.trace()) / b.shape[1], abs=1e-6)


@pytest.mark.parametrize("lift", [0, 10])
def test_dtypes_may_change_between_calls_and_autocast_changes_nothing(lift: int) -> None:
    X, y = samples(0)
    readout = Readout(DIM, lift, regularization=LAMBDA).learn(X.float(), y).learn(X, y)
    assert readout(X).dtype == torch.float64
    assert_close(readout(X.float()), readout(X), 1e-5)
    assert torch.autograd.gradcheck(readout, X[:3].clone().requires_grad_())
    full = Readout(DIM, lift, regularization=LAMBDA).learn(X.bfloat16().float(), y)
    with torch.autocast("cpu", torch.bfloat16):
        half = Readout(DIM, lift, regularization=LAMBDA).learn(X.bfloat16(), y)
    assert torch.equal(half.solution.weights, full.solution.weights)
    assert half(X.half()).shape == (80, CLASSES)


def test_learning_in_inference_mode_can_go_on_outside() -> None:
    X, y = samples(0, dtype=torch.float32)
    with torch.inference_mode():
        readout = Readout(DIM, 12).learn(2 * X, y)
        readout.predict(X)
    assert readout.learn(2 * X, y).n_samples == 160
    with torch.inference_mode():
        readout.predict(X)
    readout(X.requires_grad_()).sum().backward()
    assert X.grad is not None


def test_likelihoods_are_those_of_linear_discriminant_analysis() -> None:
    sklearn = pytest.importorskip("sklearn.discriminant_analysis")
    (X, y), (new, _) = samples(0, 20_000), samples(1, 500)
    readout = Readout(DIM, regularization=1e-9).learn(X, y)
    assert readout._sums is not None
    weights = likelihoods(readout._sums, readout.solution, shrinkage=1e-6)
    lda = sklearn.LinearDiscriminantAnalysis(solver="lsqr").fit(X.numpy(), y.numpy())
    expected = torch.from_numpy(lda.decision_function(new.numpy()))
    actual = rows_of(readout, new) @ weights.mT
    difference = (actual - actual[:, :1]) - (expected - expected[:, :1])
    assert float(difference.abs().amax()) < 0.02 * float(expected.std())


def test_an_interruption_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = samples(0)
    readout = Readout(DIM).learn(X, y)
    before = state(readout)
    with monkeypatch.context() as patch:
        patch.setattr(Sums, "grow", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            readout.learn(X, y)
    assert_same_state(readout.state_dict(), before)


BAD: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
    "NaN": (lambda X, y: (X.clone().fill_(torch.nan), y), "NaN or infinite"),
    "no rows": (lambda X, y: (X[:0], y[:0]), "no rows"),
    "another width": (lambda X, y: (X[:, 1:], y), r"expected \[n, 6\]"),
    "whole numbers": (lambda X, y: (X.long(), y), "tensor of floats"),
    "sparse": (lambda X, y: (X.to_sparse(), y), "dense"),
    "elsewhere": (lambda X, y: (X.to("meta"), y), "on meta, the readout is on cpu"),
    "fewer labels": (lambda X, y: (X, y[1:]), "labels have shape"),
    "labels elsewhere": (lambda X, y: (X, y.to("meta")), "labels are on meta"),
    "below zero": (lambda X, y: (X, y - 9), "label -9 is out of range"),
    "beyond": (lambda X, y: (X, y + 10**6), "out of range"),
    "truth": (lambda X, y: (X, y > 0), "tensor of integers, got torch.bool"),
    "labels in columns": (lambda X, y: (X, y[:, None]), "labels have shape"),
    "numbers": (lambda X, y: (X, y.float()), "got torch.float32; for numbers see ConceptorRidge"),
}


@pytest.mark.parametrize("lift", [0, 9])
@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_bad_samples_change_nothing(name: str, new: bool, lift: int) -> None:
    change, message = BAD[name]
    X, y = samples(0, 20, dtype=torch.float32)
    readout = Readout(DIM, lift)
    if not new:
        readout.learn(X, y).predict(X)
    before = state(readout)
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        readout.learn(*change(X, y))
    assert "\n" not in str(caught.value)
    assert_same_state(readout.state_dict(), before)
    assert readout.learn(X, y).n_samples == (20 if new else 40)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("lift", [0, 9])
def test_features_that_are_not_finite_get_no_prediction(lift: int, bad: float) -> None:
    X, y = samples(0, 20, dtype=torch.float32)
    readout, wrong = Readout(DIM, lift).learn(X, y), X.clone()
    wrong[3, 1] = bad
    with pytest.raises(ValueError, match=r"the first in row 3, column 1 .*remove or impute"):
        readout.predict(wrong)


def test_a_readout_that_learned_nothing_has_no_answers() -> None:
    readout, X = Readout(DIM, 5), normal(0, 3, DIM)
    asks: list[Any] = [lambda: readout(X), lambda: readout.solution.quota, readout.export]
    for ask in asks:
        with pytest.raises(RuntimeError, match=r"call learn\(features, labels\) first"):
            ask()
    with pytest.raises(RuntimeError, match=r"call calibrate\(rows\) first"):
        readout.lift(X)
    assert (readout.n_samples, readout.counts.tolist()) == (0, [])
    readout.calibrate(X)
    with pytest.raises(RuntimeError, match="the lift is calibrated already"):
        readout.calibrate(X)


def sums_of(b: Tensor, Y: Tensor) -> Sums:
    sums = Sums(b.shape[1], Y.shape[1])
    sums.add(b, Y)
    return sums


def cross_validated(b: Tensor, Y: Tensor, regularization: float) -> tuple[float, float]:
    """Squared error of samples left out, if each had the average leverage, and the hat's trace."""
    n = len(b)
    hat = b @ torch.linalg.solve(b.mT @ b + n * regularization * eye(b.shape[1]), b.mT)
    share = float(hat.trace()) / n
    error = float((Y - hat @ Y).square().sum()) / (1 - share) ** 2
    return (error if share < 0.999 else math.inf), share * n


@pytest.mark.parametrize(("n", "noise"), [(200, 0.1), (200, 3.0), (60, 1.0), (25, 1.0), (8, 0.3)])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_regularization_of_the_grid_is_chosen(n: int, noise: float, seed: int) -> None:
    X = normal(seed, n, 20) * torch.logspace(0, -2, 20)
    b = torch.cat([X, torch.ones_like(X[:, :1])], 1)
    Y = X @ normal(seed + 1, 20, 2) + noise * normal(seed + 2, n, 2)
    solution = solve(sums_of(b, Y))
    grid = [float(b.square().mean()) * 10.0 ** (e / 2) for e in range(-24, 9)]
    (_, trace), best = min((cross_validated(b, Y, value), value) for value in grid)
    assert solution.regularization == pytest.approx(best)
    assert solution.quota == pytest.approx(trace / 21)


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
        assert 0 <= readout.solution.quota <= 1
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
    assert scaled.solution.regularization == pytest.approx(plain.solution.regularization, rel=1e-5)
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
