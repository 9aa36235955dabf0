"""The Fisher information, and the methods that use it: EWC and IMM."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.experiments.methods.ewc import fisher, weights_of
from conceptors.experiments.scenarios.images import build
from experiments.learners import learner, make, narrow
from experiments.tasks import blobs


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
@pytest.mark.parametrize("labels", ["expected", "true"])
def test_the_fisher_is_that_of_single_samples(labels: str, loss: str) -> None:
    ewc = learner("ewc", 2, loss=loss, n=20)
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
    torch.testing.assert_close(fisher(ewc, 0, labels), total, rtol=1e-9, atol=1e-12)


def test_outputs_of_other_heads_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conceptors.experiments.methods.ewc._SAMPLES", 3)
    scenario = build("disjoint-mnist", 0, heads=True, data=blobs())
    ewc = make("ewc", scenario, hidden="20")
    ewc.learn(0)
    nn.utils.vector_to_parameters(fisher(ewc, 0, "expected"), ewc.model.parameters())
    head = ewc.model.layers[-1]
    assert torch.equal((head.weight > 0).any(1), ewc.scenario.tasks[0].classes)
    with pytest.raises(ValueError, match="ewc cannot learn colour images"):
        narrow("ewc").learn(0)


@pytest.mark.usefixtures("double")
def test_the_ewc_penalty_is_the_sum_over_tasks() -> None:
    ewc = learner("ewc", tasks=3, strength=7.0, rate=0.01)
    fishers, means = [], []
    for k in range(2):
        ewc.learn(k)
        fishers.append(fisher(ewc, k, "expected"))
        means.append(weights_of(ewc.model).detach())
    weights = means[1] + torch.randn(len(means[0]), generator=torch.manual_seed(0))
    nn.utils.vector_to_parameters(weights, ewc.model.parameters())
    penalised = ewc.loss(torch.zeros(4, 4), torch.arange(4), 2)  # a penalty per sample
    gradients = torch.autograd.grad(penalised.mean(), list(ewc.model.parameters()))
    expected = 7.0 * sum(f * (weights - mean) for f, mean in zip(fishers, means))
    torch.testing.assert_close(torch.cat([g.flatten() for g in gradients]), expected)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mode", ["mean", "mode"])
def test_imm_merges_all_tasks_and_pulls_towards_the_last(mode: str) -> None:
    share = 0.3
    imm = learner("imm", tasks=3, mode=mode, share=share, l2=0.05)
    means, precisions = [], []
    for k in range(3):
        imm.learn(k)
        means.append(weights_of(imm.model).detach())
        precisions.append(fisher(imm, k, "true") + 1e-8 if mode == "mode" else torch.ones(1))
    alphas = [(1 - share) ** 2, (1 - share) * share, share]
    parts = [alpha * precision for alpha, precision in zip(alphas, precisions)]
    expected = sum(part * mean for part, mean in zip(parts, means)) / sum(parts)
    torch.testing.assert_close(imm.merged, expected, rtol=1e-9, atol=1e-12)
    tested, imm.accuracy = [], lambda split, number: tested.append(weights_of(imm.model))
    imm.test()
    assert torch.equal(tested[0], imm.merged)
    assert torch.equal(weights_of(imm.model), means[-1])  # training goes on from there
    nn.utils.vector_to_parameters(means[-1] + 1, imm.model.parameters())
    losses = imm.loss(torch.zeros(4, 4), torch.arange(4), 1)
    for gradient in torch.autograd.grad(losses.mean(), list(imm.model.parameters())):
        torch.testing.assert_close(gradient, torch.full_like(gradient, 0.1))  # of l2 |θ - θ_old|²
