"""How learners are tested."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from conceptors.experiments.methods.base import even_parts
from conceptors.experiments.methods.shielded import Shielded
from experiments.learners import CPU, learner


def test_parts_hold_every_sample_of_every_seed_once() -> None:
    parts = even_parts((7, 4), 3, CPU)
    assert {places.shape[1] for places, _ in parts} <= {2, 3}
    for seed, size in enumerate((7, 4)):
        seen = torch.cat([places[seed][counted[seed]] for places, counted in parts])
        assert seen.tolist() == list(range(size))
        assert all(int(places[seed].max()) < size for places, _ in parts)
    assert even_parts((0, 0), 3, CPU) == []


@pytest.mark.parametrize("limit", [None, 3])
def test_accuracy_is_that_of_each_seed_on_its_own_samples(limit: int | None) -> None:
    made = learner("sgd", [0, 1], n=50)
    made.learn(0)
    whole = made.scenario.tasks[0].test
    split = replace(whole, counts=(whole.counts[0], whole.counts[1] - 7))  # of different sizes
    right, loss = made.evaluate(split, 0, limit)
    for seed, size in enumerate(split.sizes()):
        count = min(size, limit or size)
        x, y = split.of_seed(seed).take(torch.arange(count)[None])
        out = made.model(x.expand(2, *x.shape[1:])).detach()
        rights = (out[seed].argmax(-1) == y[0]).float()
        assert float(right[seed]) == pytest.approx(100 * float(rights.mean()))
        losses = made.loss(out, y.expand(2, -1), 0)[seed]
        assert float(loss[seed]) == pytest.approx(float(losses.mean()), rel=1e-5)


def halves(method: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    """A learner that is tested in float16, as on a GPU."""
    made = learner(method, [0, 1], precision="tf32", **settings)
    made.learn(0)
    assert not made.tests_in_half()  # on a CPU
    monkeypatch.setattr(made, "tests_in_half", lambda: True)
    return made


@pytest.mark.parametrize("method", ["sgd", "cab", "codecl"])
def test_in_float16_accuracy_is_about_the_same(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = halves(method, monkeypatch)
    split = made.scenario.tasks[0].test
    right, loss = made.evaluate(split, 0)
    exact_right, exact_loss, _ = made._evaluate(split, 0, None, False)
    assert loss.dtype == torch.float32
    assert not torch.equal(loss, exact_loss)
    torch.testing.assert_close(loss, exact_loss, rtol=0.01, atol=0.01)
    torch.testing.assert_close(right, exact_right, rtol=0, atol=5.0)


@pytest.mark.parametrize("loss", ["bce", "mse", "softmax"])
def test_what_float16_cannot_hold_is_computed_again(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of that seed alone."""
    made = halves("sgd", monkeypatch, loss=loss)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter[1].mul_(3e3)  # outputs beyond 65504
    split = made.scenario.tasks[0].test
    exact, half = (made._evaluate(split, 0, None, halved) for halved in (False, True))
    assert exact[2].tolist() == [True, True]
    assert half[2].tolist() == [True, False]
    for found, *pair in zip(made.evaluate(split, 0), half, exact):
        assert torch.equal(found, torch.stack([pair[0][0], pair[1][1]]))


def test_nothing_is_made_ready_for_an_optimizer_that_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = learner("cab", [0, 1])
    counts = []
    monkeypatch.setattr(made, "remember", lambda batches: counts.append(len(made.shield._guards)))
    made.learn(0)
    assert isinstance(made, Shielded)
    assert counts == [0]


@pytest.mark.parametrize(
    ("method", "precision", "halved"),
    [
        ("sgd", "tf32", True),
        ("cab", "tf32", True),
        ("cab", "exact", False),
        ("cab", "auto", False),
        ("cab-readout", "tf32", False),  # its sums are of features in TF32
    ],
)
def test_which_are_tested_in_float16(method: str, precision: str, halved: bool) -> None:
    made = learner(method, [0, 1], precision=precision)
    made.device = torch.device("cuda")
    assert made.tests_in_half() is halved
