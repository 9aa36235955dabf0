"""Methods: stacked seeds do not meet, and every formula is checked against a plain version."""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, Learner, add, parse_settings
from conceptors.experiments.methods.fisher import fisher
from conceptors.experiments.methods.lesson import Stream
from conceptors.experiments.presets import preset
from conceptors.experiments.runner import Experiment, ExperimentError, run
from conceptors.experiments.scenarios import build
from experiments.learners import CPU, learner
from experiments.tasks import blobs
from helpers import weights

# --- seeds together ----------------------------------------------------------------------

STACKED: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "decay": 1e-3, "loss": "softmax", "activation": "tanh"}),
    ("sgd", {"gradient": "unit", "loss": "mse", "activation": "sigmoid", "init": "truncated"}),
    ("sgd", {"stop_above": 55.0, "steps": 60, "momentum": 0.5, "decay": 0.01}),
    ("sgd", {"average": 0.8, "stop_above": 55.0, "steps": 60}),
    ("cab", {"aperture": 2.0}),
    ("cab", {"aperture": 2.0, "average": 0.9}),
    ("cab", {"aperture": 0.7, "hard": True, "gradient": "sum", "rate": 0.02}),
    ("cab", {"aperture": 2.0, "reuse": True, "claim_once": True}),
    ("cab", {"hard": True, "reuse": True, "momentum": 0.5, "gradient": "unit", "rate": 0.01}),
    ("cab", {"gradient": "unit", "increment_decay": 0.01, "first_anchor": "zero", "samples": 30}),
    ("cab-readout", {"aperture": 2.0, "lift": 30}),
    ("cab-readout", {"lift": 0, "scores": "likelihood", "regularization": "0.1"}),
    ("ewc", {"loss": "softmax"}),
    ("ewc", {"labels": "sample", "fisher_samples": 20}),
    ("ewc", {"labels": "sample", "loss": "softmax", "online": True, "fade": 0.9}),
    ("imm", {"l2": 0.01}),
    ("imm", {"mode": "mean", "drop": 0.3}),
    ("shield", {}),
    ("shield", {"momentum": 0.9}),
    ("joint", {}),
    ("separate", {}),
    ("owm", {"clip": 0.5}),
    ("owm", {"update": "task", "loss": "softmax", "alpha": "0.5,2", "alpha_decay": "0.1,1"}),
    ("gpm", {"threshold": 0.6, "samples": 20}),
    ("gpm", {"threshold": 0.7, "rows": 10, "bias": False}),
    ("sgp", {"threshold": 0.8, "coefficient": 2.0}),
    ("trgp", {"threshold": 0.6, "samples": 20}),
    ("codecl", {"aperture": 2.0, "free": 2, "samples": 20, "loss": "softmax"}),
]


@pytest.mark.parametrize(("method", "settings"), STACKED, ids=str)
def test_stacked_seeds_are_as_one_by_one(method: str, settings: dict[str, Any]) -> None:
    seeds = [0, 3, 8]
    together = learner(method, seeds, **settings)
    histories = [together.learn(k) for k in range(2)]
    tested = together.test()
    for i, seed in enumerate(seeds):
        alone = learner(method, [seed], **settings)
        for k in range(2):
            (history,) = alone.learn(k)
            stacked = histories[k][i]
            assert stacked["step"] == history["step"]
            assert stacked["loss"] == pytest.approx(history["loss"], rel=1e-3, abs=1e-4)
        for ours, theirs in zip(together.model.parameters(), alone.model.parameters()):
            torch.testing.assert_close(ours[i : i + 1], theirs, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(tested[i : i + 1], alone.test(), rtol=0, atol=2.6)  # a sample


def test_the_first_seed_of_a_stack_has_the_spectra_that_it_has_alone() -> None:
    together, alone = learner("cab", [3, 8]), learner("cab", [3])
    for made in (together, alone):
        made.learn(0)
    ours, theirs = together.extras[0]["spectra"], alone.extras[0]["spectra"]
    assert list(ours) == list(theirs) == ["input", "hidden 1"]
    for layer, values in ours.items():
        assert values[0] == pytest.approx(theirs[layer][0], abs=2e-5)  # rounded
    assert "spectra" not in together.extras[1]  # a page shows one


def test_seeds_differ() -> None:
    found = learner("sgd", [0, 1])
    assert not torch.equal(found.model.layers[0].weight[0], found.model.layers[0].weight[1])


@pytest.mark.parametrize("optimizer", [{}, {"momentum": 0.9}, {"decay": 0.1}], ids=str)
@pytest.mark.parametrize("method", ["sgd", "cab"])
def test_a_seed_that_reached_its_goal_stands_still(method: str, optimizer: dict[str, Any]) -> None:
    """Its weights are those of a run that ends there, whatever the others do."""
    extra = {"increment_decay": 0.01} if method == "cab" else {}
    settings: dict[str, Any] = {
        "stop_above": 70.0,
        "steps": 40,
        "check_every": 2,
        **optimizer,
        **extra,
    }
    seeds = list(range(6))
    together = learner(method, seeds, **settings)
    history = together.learn(0)
    ends = [h["step"][-1] for h in history]
    assert len(set(ends)) > 1  # some stop earlier than others
    for i, h in enumerate(history):
        assert all(v <= 70.0 for v in h["validation"][:-1])
        # the same seed, made to stop at its own end by the number of steps
        bare: dict[str, Any] = {**settings, "steps": ends[i], "stop_above": 0.0}
        alone = learner(method, [seeds[i]], **bare)
        alone.learn(0)
        for ours, theirs in zip(together.model.parameters(), alone.model.parameters()):
            torch.testing.assert_close(ours[i : i + 1], theirs, rtol=1e-4, atol=1e-5)


def test_a_shield_may_be_told_share_and_pull() -> None:
    quotas, drifts = [], []
    told: list[dict[str, Any]] = [{}, {"share": 0.99}, {"pull": 500.0}]
    for settings in told:
        made = learner("shield", [0], **settings)
        made.learn(0)
        before = [p.detach().clone() for p in made.model.parameters()]
        quotas.append(made.extras[0]["quota"]["hidden 1"][0])
        made.learn(1)
        moved = [(p.detach() - b).square().sum() for p, b in zip(made.model.parameters(), before)]
        drifts.append(float(torch.stack(moved).sum()))
    assert quotas[1] > quotas[0] == quotas[2]
    assert drifts[2] < drifts[0]
    with pytest.raises(ValueError, match="Auto share must be less than 1"):
        learner("shield", [0], share=1.0)


def test_later_tasks_may_stop_earlier() -> None:
    found = learner("sgd", [0], stop_above=90.0, stop_above_later=70.0)
    assert found.threshold(0) == 90.0
    assert found.threshold(1) == 70.0
    assert learner("sgd", [0], stop_above_later=70.0).threshold(1) == float("inf")


# --- CAB ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("hard", [True, False])
def test_a_cab_step_is_algorithm_2_with_the_authors_details(hard: bool) -> None:
    """Project, then scale each neuron's gradient to length 1, then the increment's decay."""
    given = preset("paper", "disjoint-mnist").settings("cab")
    aperture = 0.7 if hard else 0.6  # six inputs only: some directions are to stay free
    own = {"hidden": "5", "steps": 4, "batch": 12, "stop_above": 0.0, "stop_above_later": 0.0}
    found = learner("cab", [3], tasks=3, **{**given, **own, "aperture": aperture, "hard": hard})
    s = found.settings
    assert (s.gradient, s.activation, s.loss, s.first_anchor) == ("unit", "sigmoid", "mse", "zero")

    def blocks() -> list[Tensor]:
        return [
            torch.cat([layer.weight[0], layer.bias[0][:, None]], 1).detach().clone()
            for layer in found.model.layers
        ]

    w = blocks()
    previous = [torch.zeros_like(b) for b in w]
    claimed = [torch.zeros(b.shape[1], b.shape[1]) for b in w]
    sums = [c.clone() for c in claimed]

    def with_unit(h: Tensor) -> Tensor:
        return torch.cat([h, torch.ones(len(h), 1)], 1)

    for k in range(3):
        split = found.scenario.tasks[k].train
        stream = Stream([60], [3], k, 12, 4, CPU)
        for step in range(4):
            x, y = (part[0] for part in split.take(stream.places(step)))
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
        found.learn(k)
        for ours, theirs in zip(blocks(), w):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
        x = split.take(torch.arange(60)[None])[0][0]
        b0 = with_unit(x)
        for i, b in enumerate([b0, with_unit(torch.sigmoid(b0 @ w[0].T))]):
            r = b.T @ b / 60
            if hard:  # directions of conceptor value >= 1/2; OR is the projector on their span
                values, vectors = torch.linalg.eigh(r)
                kept = vectors[:, values >= aperture**-2]
                sums[i] = sums[i] + kept @ kept.T
                values, vectors = torch.linalg.eigh(sums[i])
                span = vectors[:, values > 1e-9]
                claimed[i] = span @ span.T
            else:
                sums[i] = sums[i] + r
                claimed[i] = sums[i] @ torch.linalg.inv(sums[i] + aperture**-2 * torch.eye(len(r)))
        previous = [block.clone() for block in w]
    quotas = [float(c.trace()) / len(c) for c in claimed]
    assert all(0.1 < q < 0.99 for q in quotas), quotas  # some directions protected, some free
    assert [v[-1] for v in found.extras[0]["quota"].values()] == pytest.approx(quotas, abs=1e-6)


@pytest.mark.parametrize("method", ["sgd", "cab"])
def test_no_optimizer_outlives_its_task(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shield would go on preparing its steps."""
    found, seen = learner(method, [0]), []
    guarded = type(found).guarded

    def noted(self: Any, optimizer: Any, finish: Any) -> None:
        seen.append(weakref.ref(optimizer))
        guarded(self, optimizer, finish)

    monkeypatch.setattr(type(found), "guarded", noted)
    for k in range(2):
        found.learn(k)
    assert len(seen) == 2
    assert all(one() is None for one in seen)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("cab", {"aperture": 4.0}),
        ("cab-readout", {"aperture": 4.0, "lift": 100}),
        ("shield", {}),
        ("owm", {"rate": 1.0}),
        ("gpm", {"threshold": 0.95}),
        ("sgp", {"threshold": 0.95}),
    ],
)
def test_less_is_forgotten_than_by_plain_training(method: str, settings: dict[str, Any]) -> None:
    common: dict[str, Any] = {"hidden": "30", "steps": 300, "rate": 0.1}
    kept = []
    for name, own in (("sgd", {}), (method, settings)):
        found = learner(name, [0, 1, 2], **{**common, **own})
        found.learn(0)
        before = found.test()[:, 0]
        assert float(before.mean()) > 80
        found.learn(1)
        kept.append(float((found.test()[:, 0] - before).mean()))
    assert kept[1] > kept[0] + 3


@pytest.mark.parametrize(
    ("method", "settings", "count"),
    [
        ("sgd", {}, None),
        ("cab", {}, 7**2 + 6**2),  # a conceptor per layer
        # one of the first layer; sums of products, by class, of labels; count, rounding
        ("cab-readout", {"lift": 9}, 7**2 + 10**2 + 4 * 10 + 4 + 2),
        ("ewc", {}, 2 * 59),  # Fisher, and Fisher times weights
        ("imm", {}, 2 * 59),  # precision and merged weights
        ("imm", {"mode": "mean"}, 59),
    ],
)
def test_methods_say_how_much_they_keep(
    method: str, settings: dict[str, Any], count: int | None
) -> None:
    found = learner(method, [0, 1], **settings)
    for number in range(2):
        found.learn(number)
    assert [extra.get("stored_numbers") for extra in found.extras] == [count, count]


def test_joint_is_plain_training_on_everything() -> None:
    found = learner("joint", [0, 1], tasks=3, steps=0, epochs=1.0)
    assert found.training_split(2).counts == (180, 180)
    assert [found.steps(k) for k in range(3)] == [8, 8, 24]


# --- colour images and heads -------------------------------------------------------------


def colour(method: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    monkeypatch.setattr("conceptors.experiments.scenarios.images.load", partial(blobs, train=220))
    kind = METHODS[method]
    parsed = parse_settings(kind.settings_type, {"steps": 1, "batch": 8, **settings})
    return kind(build("split-cifar100", [0], tasks=2), parsed, CPU, quiet)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("sgd", {"gradient": "unit", "stop_above": 50.0, "momentum": 0.5}),
        ("ewc", {"fisher_samples": 3, "labels": "pred"}),
        ("imm", {"fisher_samples": 3, "drop": 0.3, "l2": 0.1}),
        ("cab-readout", {"samples": 4, "lift": 20}),
        ("joint", {"loss": "softmax"}),
        ("owm", {"alpha": "100"}),
        ("gpm", {"threshold": 0.5, "samples": 4}),
        ("sgp", {"threshold": 0.5, "samples": 4, "rows": 50}),
        ("trgp", {"threshold": 0.5, "samples": 4, "rows": 50, "trust": 0.1}),
        ("codecl", {"samples": 4, "kept": 0.5, "overlap": 0.0}),
    ],
)
def test_methods_learn_colour_images(
    method: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = colour(method, monkeypatch, **settings)
    before = weights(found.model)
    for k in range(2):
        (history,) = found.learn(k)
        assert all(v < 1000 for v in history["loss"])  # no label outside its head
    for now, old in zip(weights(found.model), before):
        assert bool(now.isfinite().all())
        assert not torch.equal(now, old) or now.ndim == 2
    assert all(norm.held is None for norm in found.model.norms)
    assert found.test().shape == (1, 2)


def test_the_fisher_of_a_network_with_batchnorm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics are those of the task's samples, held fixed; then sample by sample."""
    found = colour("ewc", monkeypatch, loss="softmax")
    split, model = found.scenario.tasks[0].train, found.model
    seen: dict[Any, tuple[Tensor, Tensor]] = {}

    def note(norm: Any, given: tuple[Tensor]) -> None:
        channels = given[0][0].transpose(0, 1).flatten(1)
        seen[norm] = channels.var(1, correction=0)[None], channels.mean(1)[None]

    hooks = [norm.register_forward_pre_hook(note) for norm in model.norms]
    model.eval()
    with torch.no_grad():
        model(split.take(torch.arange(split.counts[0])[None])[0])
    for hook in hooks:
        hook.remove()
    ours = fisher(found, 0, 2, "true")
    for norm, (var, mean) in seen.items():
        norm.held = mean, var
    model.eval()
    total = [torch.zeros_like(p) for p in model.parameters()]
    draw = torch.Generator().manual_seed(350_377)
    for i in torch.randperm(split.counts[0], generator=draw)[:2]:
        x, y = split.take(i.reshape(1, 1))
        log_p = found.masked(model(x), 0)[0, 0].log_softmax(-1)[int(y)]
        for so_far, grad in zip(total, torch.autograd.grad(log_p, list(model.parameters()))):
            so_far.add_(grad.square() / 2)
    for mine, plain in zip(ours, total):
        torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-7)


def test_joint_training_gives_every_sample_its_own_head(monkeypatch: pytest.MonkeyPatch) -> None:
    found = colour("joint", monkeypatch, loss="softmax")
    outputs = torch.randn(1, 4, 100, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([[3, 70, 49, 50]])
    losses = found.loss(outputs, y, 1)[0]
    for i, label in enumerate(y[0].tolist()):
        own = slice(0, 50) if label < 50 else slice(50, 100)
        wanted = -outputs[0, i, own].log_softmax(-1)[label % 50]
        assert float(losses[i]) == pytest.approx(float(wanted), rel=1e-5)


# --- one's own ---------------------------------------------------------------------------


def test_a_method_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conceptors.experiments.scenarios.images.load", blobs)

    class Slow(Learner):
        """After the first task, gradients are made smaller."""

        name = "slow"
        about = "learns later tasks slowly"

        def gradients(self, number: int) -> None:
            for parameter in self.model.parameters():
                if number and parameter.grad is not None:
                    parameter.grad *= 0.01

    monkeypatch.setitem(METHODS, "slow", Slow)
    assert add(Slow) is Slow  # again: the same one
    common = {"hidden": "8", "steps": 40, "batch": 16}
    wanted = Experiment("disjoint-mnist", ["sgd", "slow"], [0], settings={"*": common})
    results = run(wanted, tmp_path, progress=quiet)
    summary = results.summary
    assert summary["slow"]["forgetting"] < summary["sgd"]["forgetting"]
    with pytest.raises(ValueError, match="there is a method 'slow' already"):
        add(type("Other", (Learner,), {"name": "slow"}))
    with pytest.raises(ExperimentError, match="did you mean 'slow'"):
        run(Experiment("disjoint-mnist", ["slw"], [0]), tmp_path, progress=quiet)
    with pytest.raises(ValueError, match="Other has the name 'constructor'"):
        add(type("Other", (Learner,), {"name": "constructor"}))
