"""What a task has for itself: neutral at first, used by it alone, never left in the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from conceptors.experiments.methods.relatives.layers import drawn_inputs, matrix_layers
from conceptors.experiments.methods.relatives.own_parts import OwnPart
from conceptors.experiments.networks import AlexNet, StackedMLP
from experiments.learners import learner
from helpers import normal, rotation, weights

# so that all that a task's training samples meet is protected, to rounding
FULL: dict[str, dict[str, Any]] = {
    "trgp": {"threshold": 1.0, "samples": 0},
    "codecl": {"aperture": 1e6, "kept": 0.0, "least": 0.0, "samples": 0, "free": 3, "overlap": 0.2},
}
FEW: dict[str, Any] = {"inputs": 16, "n": 10, "hidden": "20", "rate": 0.1, "steps": 20}


def subspaces(groups: int, slots: int, dim: int, rank: int) -> torch.Tensor:
    return torch.stack(
        [
            torch.stack([rotation(7 * g + k, dim)[:, :rank] for k in range(slots)])
            for g in range(groups)
        ]
    )


def test_the_effective_weight_is_the_formula() -> None:
    W, U = normal(0, 3, 4, 6), subspaces(3, 2, 6, 3)
    U[1, 1] = 0  # the second seed has one subspace only
    part = OwnPart(U)
    assert torch.equal(part.effective(W), W)  # neutral
    part.mix.data = normal(1, 3, 2, 3, 3)
    found = part.effective(W)
    for g in range(3):
        wanted = W[g] + sum(W[g] @ U[g, k] @ part.mix[g, k] @ U[g, k].T for k in range(2))
        torch.testing.assert_close(found[g], wanted)
    assert part.ranks.tolist() == [[3, 3], [3, 0], [3, 3]]
    (gradient,) = torch.autograd.grad(found.square().sum(), part.mix)
    assert not bool(gradient[1, 1].any())
    assert bool(gradient[1, 0].any())


@pytest.mark.parametrize(
    "model",
    [
        StackedMLP([6, 5, 4], "relu", "truncated", 0.5, [0, 1, 2]),
        AlexNet(10, [0]),
        nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose2d(6, 4, 2)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_matrix_goes_back_into_parameters(model: nn.Module) -> None:
    for layer in matrix_layers(model):
        made = layer.as_parameters(layer.live_matrix() * 2)
        for ours, own in zip(made, layer.parameters, strict=True):
            assert torch.equal(ours, 2 * own)
        torch.cat([p.flatten() for p in made]).sum().backward()
        assert all(p.grad is not None and bool((p.grad == 2).all()) for p in layer.parameters)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("method", list(FULL))
def test_earlier_tasks_keep_their_outputs(method: str) -> None:
    found = learner(method, [0, 1], **FEW, **FULL[method])
    x = drawn_inputs(found, 0, 0)
    found.learn(0)
    before, wanted = weights(found.model), found.outputs(x, 0)
    found.learn(1)
    for old, new in zip(before, weights(found.model)):
        assert float((old - new).abs().amax()) > 1e-3
    torch.testing.assert_close(found.outputs(x, 0), wanted, rtol=1e-7, atol=1e-7)
    assert found.parts[1]  # there was something to share
    assert all(bool(part.mix.any()) for part in found.parts[1].values())


@pytest.mark.parametrize("method", list(FULL))
def test_what_is_a_tasks_own_is_used_by_it_alone(method: str) -> None:
    found = learner(method, [0, 1], **FULL[method])
    histories = [found.learn(k) for k in range(2)]
    tasks = found.scenario.tasks
    checked = [h["validation"][-1] for h in histories[1]]
    assert found.accuracy(tasks[1].validation, 1).tolist() == checked
    before = weights(found.model)
    x = drawn_inputs(found, 1, 0)
    plain, first, second = found.model(x), found.outputs(x, 0), found.outputs(x, 1)
    assert torch.equal(plain, first)
    assert not torch.allclose(plain, second)
    with found.weights_of(1):
        torch.testing.assert_close(found.model(x), second)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(found.model)))
    tested = found.test()
    for part in found.parts[1].values():
        part.mix.data.normal_(generator=torch.Generator().manual_seed(0)).mul_(10)
    assert torch.equal(found.outputs(x, 0), first)
    assert torch.equal(found.test()[:, 0], tested[:, 0])
    assert not torch.allclose(found.outputs(x, 1), second)


@pytest.mark.parametrize("method", list(FULL))
def test_a_task_not_begun_is_tested_with_the_weights_alone(method: str) -> None:
    found = learner(method, [0], tasks=3)
    found.learn(0)
    x = drawn_inputs(found, 2, 0)
    assert torch.equal(found.outputs(x, 2), found.model(x))
    assert found.needs_task_label


@pytest.mark.parametrize(
    ("method", "settings"),
    [("trgp", {"own_rate": 0.2}), ("codecl", {"free": 3, "aperture": 2.0, "own_rate": 0.3})],
)
def test_tasks_are_learned_and_kept(method: str, settings: dict[str, Any]) -> None:
    given: dict[str, Any] = {"tasks": 3, "n": 200, "hidden": "30", "steps": 120, "rate": 0.1}
    reached = []
    for name, own in (("sgd", {}), (method, settings), (method, {**settings, "own_rate": 0.0})):
        found = learner(name, [0, 1], **given, **own)
        for k in range(3):
            found.learn(k)
        reached.append(float(found.test().mean()))
    plain, all_of_it, only_projected = reached
    assert all_of_it > plain + 10
    assert all_of_it > only_projected + 5


@pytest.mark.parametrize("method", list(FULL))
def test_training_that_diverged_is_said_so(method: str) -> None:
    found = learner(method, [0], rate=1e30, gradient="sum")
    found.learn(0)
    assert found.diverged == {0: "task 1 of 2"}


@pytest.mark.parametrize("optimizer", [{}, {"momentum": 0.9}], ids=str)
@pytest.mark.parametrize("method", list(FULL))
def test_own_parts_of_a_seed_that_reached_its_goal_stand_still(
    method: str, optimizer: dict[str, Any]
) -> None:
    settings = {**FULL[method], **optimizer, "stop_above": 50.0, "steps": 40, "check_every": 2}
    seeds = list(range(4))
    together = learner(method, seeds, **settings)
    ends = [[h["step"][-1] for h in together.learn(k)] for k in range(2)]
    assert len(set(ends[1])) > 1
    for i, seed in enumerate(seeds):
        alone = learner(method, [seed], **settings)
        assert [alone.learn(k)[0]["step"][-1] for k in range(2)] == [row[i] for row in ends]
        x = drawn_inputs(alone, 1, 0)
        ours = together.outputs(x.expand(len(seeds), -1, -1), 1)[i]
        torch.testing.assert_close(ours, alone.outputs(x, 1)[0], rtol=1e-3, atol=1e-4)
