"""The Fisher information, and the methods that use it: EWC and IMM."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.experiments.methods.fisher import fisher
from experiments.learners import learner, narrow


def vector(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def outcomes(p: Tensor, y: int, labels: str, *, softmax: bool) -> list[tuple[float, Tensor]]:
    """Labels with their probabilities."""
    if labels == "true":
        return [(1.0, torch.eye(4)[y])]
    if softmax:
        return [(float(p[k]), torch.eye(4)[k]) for k in range(4)]
    drawn = [torch.tensor(outcome) for outcome in product((0.0, 1.0), repeat=4)]
    return [(float((p * y + (1 - p) * (1 - y)).prod()), y) for y in drawn]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("loss", ["softmax", "bce"])
@pytest.mark.parametrize("labels", ["all", "true"])
def test_the_fisher_is_that_of_single_samples(labels: str, loss: str) -> None:
    ewc = learner("ewc", 2, loss=loss, labels=labels, n=20)
    split, softmax = ewc.scenario.tasks[0].train, loss == "softmax"
    total: Any = 0
    for i in range(20):
        x, y = split.take(torch.tensor([i]))
        p = ewc.model(x)[0].detach().softmax(0) if softmax else ewc.model(x)[0].detach().sigmoid()
        for chance, target in outcomes(p, int(y), labels, softmax=softmax):
            out = ewc.model(x)[0]
            log_p = (out.log_softmax(0) * target).sum()
            if not softmax:
                log_p = -functional.binary_cross_entropy_with_logits(out, target, reduction="sum")
            gradient = torch.autograd.grad(log_p, list(ewc.model.parameters()))
            total += chance * torch.cat([g.flatten() for g in gradient]).square() / 20
    torch.testing.assert_close(fisher(ewc, 0), total, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", ["softmax", "bce"])
def test_outputs_of_other_heads_are_left_out(loss: str) -> None:
    ewc = narrow("ewc", loss=loss, norms="first", fisher_samples=3)
    ewc.learn(0)
    nn.utils.vector_to_parameters(fisher(ewc, 0), ewc.model.parameters())
    assert torch.equal((ewc.model.head.weight > 0).any(1), ewc.scenario.tasks[0].classes)
    with pytest.raises(ValueError, match="set norms=first"):
        narrow("ewc", fisher_samples=3).learn(0)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_the_ewc_penalty_is_the_sum_over_tasks(gradient: str) -> None:
    ewc = learner("ewc", tasks=3, strength=7.0, gradient=gradient, rate=0.01)
    fishers, means = [], []
    for k in range(2):
        ewc.learn(k)
        fishers.append(fisher(ewc, k))
        means.append(vector(ewc.model))
    weights = vector(ewc.model) + torch.randn(len(means[0]), generator=torch.manual_seed(0))
    nn.utils.vector_to_parameters(weights, ewc.model.parameters())
    y = torch.arange(4)
    penalised = ewc.loss(torch.zeros(4, 4), y, 2)  # a penalty per sample
    gradients = torch.autograd.grad(penalised.mean(), list(ewc.model.parameters()))
    wanted = 7.0 * sum(f * (weights - mean) for f, mean in zip(fishers, means))
    found = torch.cat([g.flatten() for g in gradients])
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    assert ewc.stored_numbers() == 2 * len(weights)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mode", ["mean", "mode"])
def test_imm_merges_all_tasks(mode: str) -> None:
    share = 0.3
    imm = learner("imm", tasks=3, mode=mode, share=share)
    means, precisions = [], []
    for k in range(3):
        imm.learn(k)
        means.append(vector(imm.model))
        precisions.append(fisher(imm, k) + 1e-8 if mode == "mode" else torch.ones(len(means[0])))
    alphas = [(1 - share) ** 2, (1 - share) * share, share]
    parts = [alpha * precision for alpha, precision in zip(alphas, precisions)]
    wanted = sum(part * mean for part, mean in zip(parts, means)) / sum(parts)
    with imm.weights_for_test():
        torch.testing.assert_close(vector(imm.model), wanted, rtol=1e-9, atol=1e-12)
    assert torch.equal(vector(imm.model), means[-1])  # training goes on from there
    assert imm.stored_numbers() == (2 if mode == "mode" else 1) * len(means[0])


@pytest.mark.usefixtures("double")
def test_imm_pulls_towards_the_last_task() -> None:
    imm = learner("imm", l2=0.05)
    imm.learn(0)
    for parameter in imm.model.parameters():
        parameter.data.add_(1.0)
    losses = imm.loss(torch.zeros(4, 4), torch.arange(4), 1)
    for gradient in torch.autograd.grad(losses.mean(), list(imm.model.parameters())):
        torch.testing.assert_close(gradient, torch.full_like(gradient, 0.1))  # of l2 |θ - θ_old|²
