"""Methods learn tiny sequences, the same every time; CAB follows Algorithm 2."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.experiment import preset
from conceptors.experiments.methods import METHODS
from conceptors.experiments.methods.training import sample_order
from experiments.learners import known, learner, narrow, taught

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in METHODS),
    ("sgd", {"gradient": "unit", "loss": "mse", "activation": "sigmoid", "init": "truncated"}),
    ("cab", {"aperture": 0.7, "hard": True, "gradient": "sum", "rate": 0.02}),
    ("cab", {"increment_decay": 0.01, "first_anchor": "zero", "samples": 30, "average": 0.9}),
    ("ewc", {"loss": "softmax"}),
    ("imm", {"mode": "mean"}),
]
SMALL: dict[str, Any] = {"aperture": 2.0, "samples": 20, "lift": 30, "threshold": 0.7, "free": 2}
SMALL |= {"strength": 1.0, "steps": 60, "hidden": "12"}


@pytest.mark.parametrize(("method", "settings"), CASES, ids=str)
def test_a_method_learns_and_repeats(method: str, settings: dict[str, Any]) -> None:
    given = {**known(method, SMALL), **settings}
    one, same = (taught(learner(method, 3, **given)) for _ in range(2))
    assert one.test() == same.test()
    assert not one.diverged
    last = one.test()[-1] if method != "imm" else one.accuracy(one.scenario.tasks[1].test, 1)
    assert last > 50  # 25 is chance
    for a, b in zip(one.model.parameters(), same.model.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("sgd", {"gradient": "unit"}),
        ("shield", {"samples": 4}),
        ("cab", {"samples": 4, "norm_aperture": 30.0}),
        ("joint", {}),
        ("separate", {}),
        ("owm", {"alpha_decay": "1"}),
        ("gpm", {"threshold": 0.5, "samples": 4}),
        ("sgp", {"threshold": 0.5, "samples": 4}),
        ("trgp", {"threshold": 0.5, "samples": 4, "trust": 0.1}),
        ("codecl", {"samples": 4, "kept": 0.5, "overlap": 0.0, "free": 3}),
    ],
)
def test_methods_learn_colour_images(method: str, settings: dict[str, Any]) -> None:
    one = narrow(method, **settings)
    norms = one.model.norms[0].weight
    for number in range(2):
        one.learn(number)
        if number == 0:
            after_first = norms.detach().clone()
    assert all(bool(p.isfinite().all()) for p in one.model.parameters())
    are_fixed = method in ("owm", "gpm", "sgp", "trgp", "codecl")
    assert torch.equal(norms, after_first) == are_fixed
    assert len(one.test()) == 2


@pytest.mark.usefixtures("double")
def test_the_paper_preset_of_cab_follows_its_authors_code() -> None:
    """Project, then scale each neuron's gradient to length 1, then the increment's decay."""
    given = preset("paper", "disjoint-mnist")
    small = {"hidden": "5", "steps": 4, "batch": 12, "stop_above": 0.0, "stop_above_later": 0.0}
    small |= {"aperture": 0.7}  # six inputs only: some directions are to stay free
    cab = learner("cab", 3, tasks=3, **{**given.common, **given.methods["cab"], **small})
    twin, s = copy.deepcopy(cab.model), cab.settings
    assert (s.gradient, s.activation, s.loss, s.hard) == ("unit", "sigmoid", "mse", True)
    for k in range(3):
        conceptors = list(cab.shield.conceptors().values()) if k else []
        claimed = [C.matrix().squeeze(0) for C in conceptors] or [torch.zeros(1, 1)] * 2
        anchors = [min(k, 1) * joined(layer.weight, layer.bias) for layer in twin.layers]
        split = cab.scenario.tasks[k].train
        for places in sample_order(60, 48, k, 3).long().split(12):
            x, y = split.take(places)
            twin.zero_grad()
            cab.loss(twin(x), y, k).sum().backward()
            for layer, A, anchor in zip(twin.layers, claimed, anchors):
                G, W = joined(layer.weight.grad, layer.bias.grad), joined(layer.weight, layer.bias)
                free = G @ (torch.eye(G.shape[1]) - A) if k else G
                unit = free / free.norm(dim=1, keepdim=True).clamp_min(1e-6)
                W = W - s.rate * (unit + 2 * s.increment_decay * (W - anchor))
                layer.weight.data, layer.bias.data = W[:, :-1].contiguous(), W[:, -1].clone()
        cab.learn(k)
        for ours, theirs in zip(cab.model.parameters(), twin.parameters()):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
    assert all(0.1 < quotas[-1] < 0.99 for quotas in cab.extras["quota"].values())


def joined(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight, bias[:, None]], 1).detach()


def test_a_shield_records_what_the_page_shows() -> None:
    cab = taught(learner("cab", tasks=3, aperture=2.0))
    assert [len(cab.extras["quota"][layer]) for layer in ("input", "hidden 1")] == [3, 3]
    spectra = cab.extras["spectra"]["input"]
    assert [len(values) for values in spectra] == [7, 7, 7]
    assert sum(spectra[-1]) / 7 == pytest.approx(cab.extras["quota"]["input"][-1], abs=1e-4)
    similarity = torch.tensor(cab.extras["similarity"])
    torch.testing.assert_close(similarity, similarity.T)
    torch.testing.assert_close(similarity.diagonal(), torch.ones(3))


def test_joint_is_plain_training_on_everything_with_every_samples_head() -> None:
    joint = learner("joint", tasks=3, epochs=1.0, steps=0)
    assert len(joint.training_split(2)) == 180
    assert [joint.steps(k) for k in range(3)] == [8, 8, 24]
    joint = narrow("joint")
    outputs = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([3, 70, 49, 50])
    losses = joint.loss(outputs, y, 1)
    for i, label in enumerate(y.tolist()):
        own = slice(0, 50) if label < 50 else slice(50, 100)
        expected = -outputs[i, own].log_softmax(0)[label % 50]
        assert float(losses[i]) == pytest.approx(float(expected), rel=1e-5)


def test_separate_networks_do_not_know_of_each_other() -> None:
    one, alone = learner("separate", tasks=3), learner("separate", tasks=3)
    one.learn(0)
    first, x = one.test(1), one.scenario.tasks[0].test.take(torch.arange(9))[0]
    outputs = one.model(x).detach()
    one.learn(1)
    one.learn(2)
    assert torch.equal(one.outputs(x, 0), outputs)
    assert one.test()[:1] == first  # nothing is forgotten
    alone.learn(2)  # which nothing came before
    assert one.test()[2] == alone.test()[2]
