"""Scores by discriminant analysis, from the same sums."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors import Readout
from conceptors.estimators import discriminant


def _classes(seed: int, n: int, classes: int = 4, dim: int = 6) -> tuple[Tensor, Tensor]:
    """Normal classes with a common covariance, of different sizes."""
    draw = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(classes, dim, generator=torch.Generator().manual_seed(99))
    mixing = torch.randn(dim, dim, generator=torch.Generator().manual_seed(98))
    y = torch.randint(classes + 2, (n,), generator=draw).clamp_max(classes - 1)
    noise = torch.randn(n, dim, generator=draw) @ mixing
    return (centres[y] + noise).double(), y


def _accuracy(readout: Readout, x: Tensor, y: Tensor) -> float:
    return float((readout.predict(x) == y).double().mean())


def test_they_are_those_of_linear_discriminant_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    sklearn = pytest.importorskip("sklearn.discriminant_analysis")
    monkeypatch.setattr(discriminant, "_LEAST", 1e-6)  # scores add up to 1: S is singular
    (x, y), (test_x, _) = _classes(0, 20_000), _classes(1, 500)
    readout = Readout(6, regularization=1e-9, scores="likelihood").learn(x, y)
    lda = sklearn.LinearDiscriminantAnalysis(solver="lsqr").fit(x.numpy(), y.numpy())
    wanted = torch.from_numpy(lda.decision_function(test_x.numpy()))
    found = readout(test_x)
    difference = (found - found[:, :1]) - (wanted - wanted[:, :1])
    assert float(difference.abs().amax()) < 0.02 * float(wanted.std())


def test_they_are_better_than_regression_where_classes_hide_each_other() -> None:
    """Three classes in a row: a regressed line of the middle one is the largest nowhere."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(900) % 3
    x = torch.stack([4.0 * y, torch.zeros(900)], 1) + torch.randn(900, 2, generator=draw)
    assert _accuracy(Readout(2).learn(x, y), x, y) < 0.75
    assert _accuracy(Readout(2, scores="likelihood").learn(x, y), x, y) > 0.9


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_any_order_of_classes_and_gaps(order: tuple[int, ...]) -> None:
    x, y = _classes(0, 2000)
    at_once = Readout(6, scores="likelihood").calibrate(x).learn(x, 2 * y)
    one_by_one = at_once.fresh()
    for label in order:
        one_by_one.learn(x[y == label], 2 * y[y == label])
    torch.testing.assert_close(one_by_one(x), at_once(x), rtol=1e-6, atol=1e-6)
    assert not set(at_once.predict(x).tolist()) & {1, 3, 5}  # never seen
    assert bool((at_once(x).softmax(1)[:, 1] == 0).all())


def test_one_class_and_few_samples() -> None:
    x, y = _classes(0, 40)
    first = y == y[0]
    readout = Readout(6, scores="likelihood").learn(x[first], y[first])
    assert bool((readout.predict(x) == y[0]).all())
    readout.learn(x[~first][:2], y[~first][:2])
    assert bool(readout(x).isfinite().all())


def test_a_wrong_word_is_refused() -> None:
    with pytest.raises(ValueError, match="scores must be 'regression' or 'likelihood'"):
        Readout(3, scores="probability")  # type: ignore[arg-type]


def test_it_is_kept_and_exported() -> None:
    x, y = _classes(0, 300)
    readout = Readout(6, scores="likelihood").learn(x, y)
    assert (readout + readout.fresh()).scores == "likelihood"
    torch.testing.assert_close(readout.export()(x.float()), readout(x).float())
