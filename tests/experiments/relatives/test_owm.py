"""OWM against recursive least squares, written plainly for one seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.methods.lesson import Stream
from experiments.learners import CPU, learner
from experiments.relatives.plain import matrices
from helpers import normal

STEPS = 6


def with_unit(h: Tensor) -> Tensor:
    return torch.cat([h, torch.ones(len(h), 1)], 1)


def shortened(gradients: list[Tensor], longest: float) -> float:
    length = sum(float(g.square().sum()) for g in gradients) ** 0.5
    return min(1.0, longest / (length + 1e-6)) if longest else 1.0


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("batch", [10, 2])  # 2: few rows, where another product is less work
@pytest.mark.parametrize(
    ("clip", "clips", "shrink"),
    [(0.0, "projected", 0.0), (0.3, "projected", 0.0), (0.3, "layers", 0.0), (0.0, "layers", 0.1)],
)
@pytest.mark.parametrize("update", ["step", "task"])
def test_steps_are_those_of_the_formulas(
    update: str, clip: float, clips: str, shrink: float, batch: int
) -> None:
    given: dict[str, Any] = {
        "alpha": "0.8,0.5",
        "alpha_decay": "0.1,1",
        "update": update,
        "clip": clip,
        "clips": clips,
        "shrink": shrink,
    }
    own: dict[str, Any] = {"steps": STEPS, "batch": batch, "loss": "softmax", "activation": "tanh"}
    own["hidden"] = "12"
    found = learner("owm", [3], **given, **own)
    w, rate = matrices(found), found.settings.rate
    P = [torch.eye(b.shape[1]) for b in w]
    for k in range(2):
        used = [p.clone() for p in P]
        split = found.scenario.tasks[k].train
        stream = Stream([60], [3], k, batch, STEPS, CPU)
        for step in range(STEPS):
            x, y = (part[0] for part in split.take(stream.places(step)))
            b0 = with_unit(x)
            h = torch.tanh(b0 @ w[0].T)
            b1 = with_unit(h)
            g1 = ((b1 @ w[1].T).softmax(1) - torch.eye(4)[y]) / batch
            g0 = (g1 @ w[1])[:, :-1] * (1 - h**2)
            steps = []
            for i, (g, b) in enumerate([(g0, b0), (g1, b1)]):
                mean = b.mean(0)
                alpha = (0.8 * 0.1 ** (step / STEPS), 0.5)[i]
                P[i] = torch.linalg.inv(torch.linalg.inv(P[i]) + torch.outer(mean, mean) / alpha)
                pull = shrink * w[i] / w[i].norm()
                own_scale = shortened([g.T @ b], clip) if clips == "layers" else 1.0
                whole = own_scale * g.T @ b + pull
                steps.append(whole @ (P[i] if update == "step" else used[i]))
            scale = shortened(steps, clip) if clips == "projected" else 1.0
            w = [old - rate * scale * s for old, s in zip(w, steps)]
        found.learn(k)
        for ours, theirs in zip(matrices(found), w):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
        for layer, theirs in zip(found.layers, P):
            torch.testing.assert_close(
                found.projectors[layer.name][0], theirs, rtol=1e-7, atol=1e-8
            )
    held = sum(p.numel() for p in P)
    assert found.extras[0]["stored_numbers"] == held


@pytest.mark.usefixtures("double")
def test_with_one_alpha_it_is_a_ridge() -> None:
    """P = α (α I + Σ x xᵀ)⁻¹."""
    found = learner("owm", [0], alpha="0.3", alpha_decay="1", steps=20, batch=4)
    split = found.scenario.tasks[0].train
    stream = Stream([60], [0], 0, 4, 20, CPU)
    means = torch.stack(
        [with_unit(split.take(stream.places(step))[0][0]).mean(0) for step in range(20)]
    )
    found.learn(0)
    wanted = 0.3 * torch.linalg.inv(0.3 * torch.eye(7) + means.T @ means)
    torch.testing.assert_close(found.projectors["layers.0"][0], wanted, rtol=1e-8, atol=1e-10)


def test_seeds_are_clipped_layer_by_layer_without_meeting() -> None:
    given: dict[str, Any] = {"clip": 0.2, "clips": "layers", "steps": 5, "init": "xavier"}
    together = learner("owm", [0, 1], **given)
    together.learn(0)
    for i in (0, 1):
        alone = learner("owm", [i], **given)
        alone.learn(0)
        for many, one in zip(together.model.parameters(), alone.model.parameters()):
            torch.testing.assert_close(many[i], one[0], rtol=1e-4, atol=1e-5)


def test_projectors_stay_projectors_when_rounded() -> None:
    """With a small α many rows make P tiny: no direction may turn negative or grow."""
    found = learner("owm", [0, 1], alpha="1", alpha_decay="1e-6", steps=1500, rate=0.01)
    found.learn(0)
    for P in found.projectors.values():
        values = torch.linalg.eigvalsh(P.double())
        assert float(values.min()) > -1e-4
        assert float(values.max()) < 1 + 1e-4
        assert torch.equal(P, P.mT)


def test_a_seed_that_reached_its_goal_keeps_its_projector() -> None:
    given: dict[str, Any] = {"stop_above": 70.0, "steps": 40, "check_every": 2}
    seeds = list(range(6))
    together = learner("owm", seeds, alpha_decay="1", **given)
    ends = [h["step"][-1] for h in together.learn(0)]
    assert len(set(ends)) > 1  # some stop earlier than others
    for i, end in enumerate(ends):
        alone = learner("owm", [seeds[i]], alpha_decay="1", steps=end, check_every=2)
        alone.learn(0)
        for name, P in together.projectors.items():
            torch.testing.assert_close(P[i : i + 1], alone.projectors[name], rtol=1e-3, atol=1e-4)


def test_testing_leaves_no_trace() -> None:
    found = learner("owm", [0])
    found.learn(0)
    before = {name: P.clone() for name, P in found.projectors.items()}
    found.test()
    found.model(normal(0, 1, 5, 6, dtype=torch.float32))
    assert all(torch.equal(P, before[name]) for name, P in found.projectors.items())
    assert not found.model.layers[0]._forward_hooks
