"""Networks, settings and the training of one task."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from conceptors.experiments.events import Event
from conceptors.experiments.experiment import preset, presets
from conceptors.experiments.methods import METHODS
from conceptors.experiments.methods.settings import Settings, parse_settings
from conceptors.experiments.methods.training import RunningMean, varied
from conceptors.experiments.networks import MLP, build_network
from conceptors.experiments.scenarios.images import build
from experiments.learners import learner, taught
from experiments.tasks import blobs
from helpers import normal


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("sgd", {"rat": 1}, "unknown setting 'rat'; did you mean 'rate'"),
        ("sgd", {"rate": "fast"}, "rate='fast' is not of type float"),
        ("sgd", {"rate": "nan"}, "rate must be a finite number"),
        ("sgd", {"steps": 1.5}, "steps=1.5 is not of type int"),
        ("sgd", {"batch": 0}, "batch must be a finite number >= 1"),
        ("sgd", {"hidden": "8,x"}, "hidden='8,x' is not like"),
        ("sgd", {"average": 1.0}, "average must be .* below 1, got 1"),
        ("sgd", {"mirror": True}, "mirror does not apply to the inputs of small"),
        ("sgd", {"activation": "swish"}, "activation must be one of"),
        ("cab", {"hard": "maybe"}, "hard='maybe' is not of type bool"),
    ],
)
def test_bad_settings_are_refused(method: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learner(method, **settings)


def test_presets_name_settings_that_exist() -> None:
    for entry in [*presets("paper").values(), *presets("best").values()]:
        parse_settings(Settings, entry.common)
        for method, settings in entry.methods.items():
            parse_settings(METHODS[method].settings_type, settings)


@pytest.mark.parametrize(
    ("scenario", "options", "hidden", "name"),
    [
        ("disjoint-mnist", {"tasks": 2}, "800, 800", "disjoint-mnist-2-deep"),
        ("disjoint-mnist", {"tasks": 5}, "17", "disjoint-mnist-5"),
        ("permuted-mnist", {"tasks": 100}, None, "permuted-mnist-100"),
        ("split-cifar100", {}, None, "split-cifar100-heads"),
    ],
)
def test_best_is_the_benchmark_that_is_asked_for(
    scenario: str, options: dict[str, Any], hidden: str | None, name: str
) -> None:
    assert preset("best", scenario, options, hidden) is presets("best")[name]
    assert preset(name, scenario) is presets("best")[name]


def test_initial_weights() -> None:
    first: Any = MLP([50, 400, 3], "relu", "uniform", 1.7, 0).layers[0]
    assert 1.6 < float(first.weight.detach().abs().max()) * math.sqrt(50) <= 1.7
    assert not first.bias.any()
    cut: Any = MLP([50, 400, 3], "sigmoid", "truncated", 0.1, 0).layers[0].requires_grad_(False)
    assert float(torch.cat([cut.weight.flatten(), cut.bias]).abs().max()) <= 0.2
    assert float(cut.weight.std()) == pytest.approx(0.088, abs=0.002)


def test_first_layers_of_images() -> None:
    scenario = build("rotated-mnist", 0, data=blobs(), tasks=1)

    def first(**settings: Any) -> torch.Tensor:
        network: Any = build_network(scenario, parse_settings(Settings, settings))
        weight: torch.Tensor = network.layers[0].weight.detach().view(-1, 28, 28)
        return weight

    plain, smooth, local = first(), first(smooth=2.0), first(local=2.0)
    for changed in (smooth, local):
        size = float(plain.square().mean())
        assert float(changed.square().mean()) == pytest.approx(size, rel=0.15)
    assert smooth.diff(dim=2).square().mean() < 0.2 * plain.diff(dim=2).square().mean()
    largest = local.flatten(1).square().sort(1, descending=True).values
    assert float(largest[:, :100].sum() / largest.sum()) > 0.9


def test_a_step_is_gradient_descent_on_the_mean_loss() -> None:
    one = learner("sgd", n=8, batch=8, steps=1, rate=0.5)
    x, y = one.scenario.tasks[0].train.take(torch.arange(8))
    before = [p.detach().clone() for p in one.model.parameters()]
    gradients = torch.autograd.grad(one.loss(one.model(x), y, 0).mean(), one.model.parameters())
    one.learn(0)
    for old, gradient, new in zip(before, gradients, one.model.parameters()):
        torch.testing.assert_close(new.detach(), old - 0.5 * gradient)
    x, y = one.scenario.tasks[0].test.take(torch.arange(3))
    correct = 100 * float((one.model(x).argmax(1) == y).float().mean())
    assert one.accuracy(one.scenario.tasks[0].test, 0, 3) == pytest.approx(correct)


def test_a_task_ends_above_its_threshold() -> None:
    settings: dict[str, Any] = {"steps": 40, "check_every": 2, "rate": 0.01}
    early = learner("sgd", **settings, stop_above=99.9, stop_above_later=1.0)
    events: list[Event] = []
    early.progress = events.append
    taught(early)
    assert ["step 40 of 40" in events[-2].text, "step 2 of 40" in events[-1].text] == [True, True]
    hot, events = learner("sgd", rate=1e30, steps=1000, check_every=2), []
    hot.progress = events.append
    hot.learn(0)
    assert (hot.diverged, len(events) < 10) == (True, True)


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_the_running_mean_is_its_definition(keep: float) -> None:
    parameter, expected = nn.Parameter(torch.zeros(2, 3).double()), torch.zeros(2, 3).double()
    mean = RunningMean([parameter], keep)
    for step in range(1, 81):
        parameter.data.copy_(normal(step, 2, 3))
        mean.add()  # every step, as 1 / (1 - keep) is small
        expected += max(1 / step, 1 - keep) * (parameter.detach() - expected)
    mean.use()
    torch.testing.assert_close(parameter.detach(), expected)
    assert (mean.every, RunningMean([], 0.998).every) == (1, 10)


def test_images_are_mirrored_and_shifted() -> None:
    x = torch.arange(1.0, 13.0).reshape(1, 1, 3, 4).expand(400, -1, -1, -1)
    plain, mirrored = x[0, 0], x[0, 0].flip(1)
    seen = {tuple(image.flatten().tolist()) for image in varied(x, True, 0)}
    assert seen == {tuple(plain.flatten().tolist()), tuple(mirrored.flatten().tolist())}
    shifted = {tuple(image.flatten().tolist()) for image in varied(x, False, 1)}
    assert len(shifted) == 9
    assert tuple(torch.cat([torch.zeros(1, 4), plain[:2]]).flatten().tolist()) in shifted
