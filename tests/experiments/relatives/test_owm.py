"""OWM against recursive least squares, written plainly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conceptors.experiments.methods.lesson import sample_order
from experiments.learners import learner
from experiments.relatives.plain import BATCH, LIKE, STEPS, entering, matrices


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_steps_are_those_of_the_formulas(clip: float) -> None:
    given: dict[str, Any] = {"alpha": 0.8, "alpha_decay": "0.1,1", "clip": clip, "hidden": "12"}
    owm = learner("owm", 3, **given, **LIKE)
    w, rate = matrices(owm), owm.settings.rate
    P = [torch.eye(b.shape[1]) for b in w]
    for k in range(2):
        split = owm.scenario.tasks[k].train
        order = sample_order(60, STEPS * BATCH, k, 3).split(BATCH)
        for step, places in enumerate(order):
            x, y = split.take(places.long())
            b0, b1 = entering(w, x)
            g1 = ((b1 @ w[1].T).softmax(1) - torch.eye(4)[y]) / BATCH
            g0 = (g1 @ w[1])[:, :-1] * (1 - b1[:, :-1] ** 2)
            steps = []
            for i, (g, b) in enumerate([(g0, b0), (g1, b1)]):
                mean = b.mean(0)
                alpha = (0.8 * 0.1 ** (step / STEPS), 0.8)[i]
                P[i] = torch.linalg.inv(torch.linalg.inv(P[i]) + torch.outer(mean, mean) / alpha)
                steps.append(g.T @ b @ P[i])
            length = sum(float(g.square().sum()) for g in steps) ** 0.5
            scale = min(1.0, clip / (length + 1e-6)) if clip else 1.0
            w = [old - rate * scale * s for old, s in zip(w, steps)]
        owm.learn(k)
        for ours, theirs in zip(matrices(owm), w):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
        for ours, theirs in zip(owm.projectors.values(), P):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
    assert owm.extras["stored_numbers"] == sum(p.numel() for p in P)


def test_projectors_stay_projectors_when_rounded() -> None:
    """With a small α many rows make P tiny: no direction may turn negative or grow."""
    owm = learner("owm", alpha_decay="1e-6", steps=1500, rate=0.01)
    owm.learn(0)
    for P in owm.projectors.values():
        values = torch.linalg.eigvalsh(P.double())
        assert float(values.min()) > -1e-4
        assert float(values.max()) < 1 + 1e-4
        assert torch.equal(P, P.mT)


def test_one_decay_per_layer() -> None:
    with pytest.raises(ValueError, match="alpha_decay has 3 numbers for 2 layers"):
        learner("owm", alpha_decay="0.1,1,0.5")
