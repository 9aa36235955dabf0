"""Weights are those of ridge regression on all samples at once, however the samples came."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from conceptors import Readout
from conceptors.readout.solve import likelihoods
from helpers import eye, normal
from readout.common import (
    CLASSES,
    DIM,
    around_mean,
    assert_close,
    assert_same_state,
    direct,
    one_hot,
    rows_of,
    samples,
    state,
)

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
    assert_close(readout.predict(X), scores.argmax(1) if kind == "labels" else readout(X))
    C = torch.linalg.inv(b.mT @ b / 80 + LAMBDA * eye(b.shape[1])) @ (b.mT @ b / 80)
    assert readout.quota == pytest.approx(float(C.trace()) / b.shape[1])
    assert readout.n_samples == 80


steps = st.lists(
    st.one_of(
        st.tuples(st.just("learn"), st.integers(0, 99), st.sampled_from([1, 2, 30])),
        st.sampled_from([("solve",), ("save",), ("other",)]),
    ),
    min_size=1,
    max_size=9,
)


@given(steps, st.sampled_from([0, 7]), st.sampled_from(["labels", "number", "numbers"]))
def test_any_history_is_the_direct_solution(
    history: list[tuple[object, ...]], lift: int, kind: str
) -> None:
    """Two readouts learn, answer, are saved and loaded; then they are added up."""
    base = Readout(DIM, lift, regularization=LAMBDA).calibrate(samples(0)[0])
    readouts, seen = [base.fresh(), base.fresh()], [(normal(0, 0, DIM), samples(0, 0)[1])]
    for step, *arguments in history:
        if step == "learn":
            seed, count = (int(str(argument)) for argument in arguments)
            X, y = samples(seed, count)
            y = (
                y
                if kind == "labels"
                else normal(int(y.sum()), len(X), 2)[:, : 1 + (kind[-1] == "s")]
            )
            readouts[0].learn(X, y[:, 0] if kind == "number" else y)
            seen.append((X, y))
        elif step == "solve" and readouts[0].n_samples:
            assert 0 <= readouts[0].quota <= 1
        elif step == "save":
            saved = readouts[0].state_dict()
            readouts[0] = Readout(DIM, lift, regularization=LAMBDA)
            readouts[0].load_state_dict(saved)
        elif step == "other":
            readouts.reverse()
    total = readouts[0] + readouts[1]
    assert total.n_samples == sum(len(X) for X, _ in seen)
    if len(seen) > 1:
        X, y = (torch.cat(parts) for parts in zip(*seen[1:]))
        b = rows_of(total, X)
        W = direct(b, one_hot(y), LAMBDA) if kind == "labels" else around_mean(b, y, LAMBDA)
        assert_close(total.solution.weights, W, 1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 0.01)])
def test_an_offset_of_targets_does_not_matter(dtype: torch.dtype, tolerance: float) -> None:
    X, y = normal(0, 150, DIM).to(dtype), normal(1, 150)
    plain, moved = Readout(DIM, 200).learn(X, y), Readout(DIM, 200).learn(X, y + 1e6)
    assert moved.regularization == plain.regularization
    assert_close(moved(X.double()) - 1e6, plain(X.double()), tolerance)


def test_dtypes_may_change_between_calls_and_autocast_changes_nothing() -> None:
    X, y = samples(0)
    for lift in (0, 10):
        readout = Readout(DIM, lift, regularization=LAMBDA).learn(X.float(), y).learn(X, y)
        assert readout(X).dtype == torch.float64
        assert_close(readout(X.float()), readout(X), 1e-5)
        half = Readout(DIM, lift, regularization=LAMBDA).learn(X.bfloat16(), y)
        full = Readout(DIM, lift, regularization=LAMBDA).learn(X.bfloat16().float(), y)
        assert_close(half.solution.weights, full.solution.weights)
        assert half(X.half()).shape == (80, CLASSES)
        with torch.autocast("cpu", torch.bfloat16):
            cast = Readout(DIM, lift, regularization=LAMBDA).learn(X.bfloat16().float(), y)
        assert torch.equal(cast.solution.weights, full.solution.weights)


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


@pytest.mark.parametrize("lift", [0, 12])
def test_gradients_reach_the_features(lift: int) -> None:
    X, y = samples(0)
    readout = Readout(DIM, lift).learn(X, y)
    assert torch.autograd.gradcheck(readout, X[:3].requires_grad_())
    assert not any(p.requires_grad for p in readout.parameters())


def test_a_module_may_be_the_lift() -> None:
    X, y = samples(0, dtype=torch.float32)
    lift = nn.Linear(DIM, 5).requires_grad_(False)
    readout = Readout(DIM, lift, regularization=LAMBDA).learn(X, y)
    assert_close(readout.solution.weights, direct(rows_of(readout, X), one_hot(y), LAMBDA), 1e-4)
    with pytest.raises(TypeError, match="lift ReLU needs an attribute out_features"):
        Readout(DIM, nn.ReLU())
    with pytest.raises(ValueError, match="lift takes 3 features, the readout 6"):
        Readout(DIM, nn.Linear(3, 4))


# --- likelihoods ----------------------------------------------------------------------------------


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


def test_likelihoods_of_classes_in_any_order_with_gaps() -> None:
    X, y = samples(0, 2000)
    at_once = Readout(DIM, scores="likelihood").calibrate(X).learn(X, 2 * y)
    one_by_one = at_once.fresh()
    for label in (3, 1, 0, 2):
        one_by_one.learn(X[y == label], 2 * y[y == label])
        assert bool(one_by_one(X).isfinite().all())
    assert_close(one_by_one(X), at_once(X), 1e-6)
    assert not set(at_once.predict(X).tolist()) & {1, 3, 5}  # never seen
    assert bool((at_once(X).softmax(1)[:, 1] == 0).all())


# --- interruptions --------------------------------------------------------------------------------


class Failing(nn.Linear):
    """A lift that fails at the n-th call."""

    calls_left = 10**9
    error: type[BaseException] = KeyboardInterrupt

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise self.error("interrupted")
        return super().forward(x).detach()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("calls", [0, 2])
def test_an_interrupted_call_learns_nothing(error: type[BaseException], calls: int) -> None:
    X, y = samples(0, 20_000, dtype=torch.float32)  # several parts
    lift = Failing(DIM, 8)
    readout = Readout(DIM, lift).learn(X[:50], y[:50])
    before, scores = state(readout), readout(X)
    lift.error, lift.calls_left = error, calls
    with pytest.raises(error):
        readout.learn(X, y)
    lift.calls_left = 10**9
    assert_same_state(readout.state_dict(), before)
    assert torch.equal(readout(X), scores)
