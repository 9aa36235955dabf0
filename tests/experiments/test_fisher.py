"""The Fisher information, and the methods that use it: EWC and IMM."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.methods import fisher as fisher_module
from conceptors.experiments.methods.fisher import fisher
from experiments.learners import learner, narrow
from helpers import weights

# --- EWC ---------------------------------------------------------------------------------


def plain_fisher(found: Any, targets: Any, *, softmax: bool) -> list[Tensor]:
    """One sample after another with autograd; `targets(p, y)` yields (chance, labels) pairs."""
    split = found.scenario.tasks[0].train
    total = [torch.zeros_like(p) for p in found.model.parameters()]
    count = split.counts[0]
    for i in range(count):
        x, y = split.take(torch.tensor([[i]]))
        out = found.model(x)[0, 0]
        p = out.softmax(-1) if softmax else out.sigmoid()
        for chance, labels in targets(p.detach(), int(y)):
            out = found.model(x)[0, 0]
            log_p = out.log_softmax(-1) if softmax else torch.nn.functional.logsigmoid(out)
            other = 0.0 if softmax else torch.nn.functional.logsigmoid(-out) * (1 - labels)
            likelihood = (log_p * labels + other).sum()
            grads = torch.autograd.grad(likelihood, list(found.model.parameters()))
            for so_far, grad in zip(total, grads):
                so_far.add_(chance * grad.square() / count)
    return total


def one_hot(k: int) -> Tensor:
    return torch.eye(4)[k]


def expected(p: Tensor, y: int, *, softmax: bool) -> Iterator[tuple[float, Tensor]]:
    """All outcomes the model thinks possible, with their probabilities."""
    if softmax:
        yield from ((float(p[k]), one_hot(k)) for k in range(4))
        return
    for outcome in product((0.0, 1.0), repeat=4):
        labels = torch.tensor(outcome)
        yield float((p * labels + (1 - p) * (1 - labels)).prod()), labels


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("loss", ["softmax", "bce"])
@pytest.mark.parametrize("labels", ["all", "pred", "true", "sample"])
def test_the_fisher_is_that_of_single_samples(
    labels: str, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = learner("ewc", [2], loss=loss, labels=labels, n=20)
    softmax = loss == "softmax"
    drawn: list[Tensor] = []
    plain_targets = fisher_module.targets

    def spy(*args: Any) -> Tensor:
        drawn.append(plain_targets(*args))
        return drawn[-1]

    monkeypatch.setattr(fisher_module, "targets", spy)
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n))  # samples in order
    ours = fisher(found, 0, 0, labels)
    picks = iter(drawn[0][0]) if drawn else iter(())
    choices = {
        "all": partial(expected, softmax=softmax),
        "true": lambda p, y: [(1.0, one_hot(y))],
        "pred": lambda p, y: [(1.0, one_hot(int(p.argmax())) if softmax else (p > 0.5).to(p))],
        "sample": lambda p, y: [(1.0, next(picks))],
    }
    for mine, plain in zip(ours, plain_fisher(found, choices[labels], softmax=softmax)):
        torch.testing.assert_close(mine, plain, rtol=1e-9, atol=1e-12)


def test_drawn_labels_follow_the_model() -> None:
    draw = torch.Generator().manual_seed(0)
    out = torch.tensor([2.0, 0.0, -1.0, 0.5]).expand(1, 20_000, 4)
    chance = torch.rand(1, 20_000, 4, generator=draw)
    y = torch.zeros(1, 20_000, dtype=torch.long)
    for softmax in (True, False):
        wanted = out[0, 0].softmax(-1) if softmax else out[0, 0].sigmoid()
        found = fisher_module.targets(out, y, "sample", softmax, chance)
        torch.testing.assert_close(found.mean((0, 1)), wanted, rtol=0, atol=0.02)
        assert set(found.unique().tolist()) == {0.0, 1.0}


def test_the_fisher_is_not_the_square_of_the_mean_gradient() -> None:
    found = learner("ewc", [2], loss="softmax", n=20)
    x, y = found.scenario.tasks[0].train.take(torch.arange(20)[None])
    found.loss(found.model(x), y, 0).mean().backward()
    wrong = torch.cat([p.grad.square().flatten() for p in found.model.parameters()])
    right = torch.cat([f.flatten() for f in fisher(found, 0, 0, "true")])
    assert float(right.sum()) > 2 * float(wrong.sum())


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("gradient", ["mean", "sum"])
@pytest.mark.parametrize("online", [False, True])
def test_the_ewc_penalty_is_the_sum_over_tasks(online: bool, gradient: str) -> None:
    found = learner("ewc", [0], tasks=3, strength=7.0, online=online, fade=0.6, gradient=gradient)
    fishers, means = [], []
    for k in range(2):
        found.learn(k)
        fishers.append(fisher(found, k, 1000, "all"))
        means.append(weights(found.model))
    torch.manual_seed(0)
    for parameter in found.model.parameters():
        parameter.data.add_(torch.randn_like(parameter))
        parameter.grad = torch.zeros_like(parameter)
    found.gradients(2)
    penalty = torch.zeros(())
    free = [p.detach().clone().requires_grad_() for p in found.model.parameters()]
    for i, value in enumerate(free):
        if online:
            total = 0.6 * fishers[0][i] + fishers[1][i]
            penalty = penalty + 3.5 * (total * (value - means[1][i]).square()).sum()
        else:
            for f, mean in zip(fishers, means):
                penalty = penalty + 3.5 * (f[i] * (value - mean[i]).square()).sum()
    scale = 8 if gradient == "sum" else 1  # a penalty a sample
    for parameter, wanted in zip(found.model.parameters(), torch.autograd.grad(penalty, free)):
        torch.testing.assert_close(parameter.grad, scale * wanted, rtol=1e-6, atol=1e-6)


def test_ewc_without_strength_is_plain_training() -> None:
    plain, free = learner("sgd", [0]), learner("ewc", [0], strength=0.0)
    for k in range(2):
        plain.learn(k)
        free.learn(k)
    for a, b in zip(plain.model.parameters(), free.model.parameters()):
        assert torch.equal(a, b)


# --- IMM ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mode", ["mean", "mode"])
def test_imm_merges_all_tasks(mode: str) -> None:
    share = 0.3
    found = learner("imm", [0], tasks=3, mode=mode, share=share)
    means, precisions = [], []
    for k in range(3):
        found.learn(k)
        means.append(weights(found.model))
        precisions.append([f + 1e-8 for f in fisher(found, k, 1000, "true")])
    alphas = [(1 - share) ** 2, (1 - share) * share, share]
    with found.weights_for_test():
        tested = weights(found.model)
    for i, merged in enumerate(tested):
        parts = [a * (p[i] if mode == "mode" else 1.0) for a, p in zip(alphas, precisions)]
        wanted = sum(p * m[i] for p, m in zip(parts, means)) / sum(parts)
        torch.testing.assert_close(merged, wanted, rtol=1e-9, atol=1e-12)
    for now, last in zip(weights(found.model), means[-1]):
        assert torch.equal(now, last)  # training goes on from the last task's weights


@pytest.mark.usefixtures("double")
def test_imm_transfers() -> None:
    found = learner("imm", [0], l2=0.05, drop=0.5, restart=True)
    start = weights(found.model)
    found.learn(0)
    old = weights(found.model)
    for parameter, previous in zip(found.model.parameters(), found.previous):
        assert torch.equal(parameter, previous)
        parameter.grad = torch.zeros_like(parameter)
    for parameter in found.model.parameters():
        parameter.data.add_(1.0)
    found.gradients(1)
    for parameter in found.model.parameters():  # of l2 |θ - θ_old|²
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 0.1))
    x = found.scenario.tasks[1].train.take(torch.arange(10)[None])[0]
    for parameter, value in zip(found.model.parameters(), old):
        parameter.data.copy_(value)
    torch.testing.assert_close(found.forward(x), found.model(x))  # nothing to drop yet
    found.start_task(1)
    for parameter, value in zip(found.model.parameters(), start):
        assert torch.equal(parameter, value)


@pytest.mark.parametrize("loss", ["softmax", "bce"])
def test_outputs_of_other_heads_are_left_out_and_add_nothing(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = narrow("ewc", [0, 1], loss=loss)
    found.scenario.tasks[1].classes[1].logical_not_()  # seeds may differ: none of the first's
    found.scenario.tasks[1].classes[1, :40] = False
    assert len(fisher_module._shown(found, 1, 100)) == 60
    ours = fisher(found, 1, 3, "all")
    monkeypatch.setattr(fisher_module, "_shown", lambda *_: list(range(100)))
    for own, whole in zip(ours, fisher(found, 1, 3, "all")):
        torch.testing.assert_close(own, whole, rtol=1e-5, atol=0)
    assert any(bool(own.any()) for own in ours)
