"""Methods learn tiny sequences, the same every time; CAB follows Algorithm 2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.methods import METHODS, Learner, add
from conceptors.experiments.methods.lesson import sample_order
from conceptors.experiments.presets import preset
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
    assert one.diverged is None
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
        ("ewc", {"norms": "first"}),
        ("imm", {"norms": "first", "l2": 0.1}),
        ("joint", {}),
        ("separate", {}),
        ("owm", {"alpha": 100.0}),
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
        history = one.learn(number)
        assert all(value < 1000 for value in history["loss"])  # no label outside its head
        if number == 0:
            after_first = norms.detach().clone()
    assert all(bool(p.isfinite().all()) for p in one.model.parameters())
    are_fixed = method in ("owm", "gpm", "sgp", "trgp", "codecl")
    assert torch.equal(norms, after_first) == are_fixed
    assert len(one.test()) == 2


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("hard", [True, False])
def test_a_cab_step_is_algorithm_2_with_the_authors_details(hard: bool) -> None:
    """Project, then scale each neuron's gradient to length 1, then the increment's decay."""
    given = preset("paper", "disjoint-mnist")
    aperture = 0.7 if hard else 0.6  # six inputs only: some directions are to stay free
    own = {"hidden": "5", "steps": 4, "batch": 12, "stop_above": 0.0, "stop_above_later": 0.0}
    own |= {"aperture": aperture, "hard": hard}
    cab = learner("cab", 3, tasks=3, **{**given.common, **given.methods["cab"], **own})
    s = cab.settings
    assert (s.gradient, s.activation, s.loss, s.first_anchor) == ("unit", "sigmoid", "mse", "zero")

    def blocks() -> list[Tensor]:
        return [torch.cat([m.weight, m.bias[:, None]], 1).detach() for m in cab.model.layers]

    def with_unit(h: Tensor) -> Tensor:
        return torch.cat([h, torch.ones(len(h), 1)], 1)

    w = blocks()
    previous = [torch.zeros_like(b) for b in w]
    claimed = [torch.zeros(b.shape[1], b.shape[1]) for b in w]
    sums = [c.clone() for c in claimed]
    for k in range(3):
        split = cab.scenario.tasks[k].train
        for places in sample_order(60, 48, k, 3).long().split(12):
            x, y = split.take(places)
            b0 = with_unit(x)
            b1 = with_unit(torch.sigmoid(b0 @ w[0].T))
            out = torch.sigmoid(b1 @ w[1].T)
            g1 = (out - torch.eye(4)[y]) * out * (1 - out)
            h = b1[:, :-1]
            g0 = (g1 @ w[1])[:, :-1] * h * (1 - h)
            for i, (g, b) in enumerate([(g0, b0), (g1, b1)]):
                direction = g.T @ b @ (torch.eye(len(claimed[i])) - claimed[i])
                unit = direction / direction.norm(dim=1, keepdim=True).clamp_min(1e-6)
                w[i] = w[i] - s.rate * (unit + 2 * s.increment_decay * (w[i] - previous[i]))
        cab.learn(k)
        for ours, theirs in zip(blocks(), w):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
        b0 = with_unit(split.take(torch.arange(60))[0])
        for i, b in enumerate([b0, with_unit(torch.sigmoid(b0 @ w[0].T))]):
            r = b.T @ b / 60
            if hard:  # directions of conceptor value >= 1/2; OR is the projector on their span
                values, vectors = torch.linalg.eigh(r)
                strong = vectors[:, values >= aperture**-2]
                sums[i] = sums[i] + strong @ strong.T
                values, vectors = torch.linalg.eigh(sums[i])
                span = vectors[:, values > 1e-9]
                claimed[i] = span @ span.T
            else:
                sums[i] = sums[i] + r
                claimed[i] = sums[i] @ torch.linalg.inv(sums[i] + aperture**-2 * torch.eye(len(r)))
        previous = [block.clone() for block in w]
    quotas = [float(c.trace()) / len(c) for c in claimed]
    assert all(0.1 < q < 0.99 for q in quotas), quotas  # some directions protected, some free
    assert [v[-1] for v in cab.extras["quota"].values()] == pytest.approx(quotas, abs=1e-6)


def test_a_shield_records_what_the_page_shows() -> None:
    cab = taught(learner("cab", tasks=3, aperture=2.0))
    assert [len(cab.extras["quota"][layer]) for layer in ("input", "hidden 1")] == [3, 3]
    spectra = cab.extras["spectra"]["input"]
    assert [len(values) for values in spectra] == [7, 7, 7]
    assert sum(spectra[-1]) / 7 == pytest.approx(cab.extras["quota"]["input"][-1], abs=1e-4)
    similarity = torch.tensor(cab.extras["similarity"])
    torch.testing.assert_close(similarity, similarity.T)
    torch.testing.assert_close(similarity.diagonal(), torch.ones(3))
    assert cab.extras["stored_numbers"] == 7**2 + 6**2  # a conceptor per layer


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
    assert one.extras["stored_numbers"] == 2 * sum(p.numel() for p in one.model.parameters())
    with pytest.raises(ValueError, match="Set norms=batch"):
        narrow("separate", norms="first")


def test_a_method_of_ones_own() -> None:
    class Slow(Learner):
        name = "slow"

    try:
        assert add(Slow) is Slow
        assert add(Slow) is Slow  # again: the same one
        with pytest.raises(ValueError, match="there is a method 'slow' already"):
            add(type("Other", (Learner,), {"name": "slow"}))
        with pytest.raises(ValueError, match="Other has the name 'constructor'"):
            add(type("Other", (Learner,), {"name": "constructor"}))
    finally:
        del METHODS["slow"]
