"""Stacked networks are what one network per seed is, made of torch's own layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors import Shield
from conceptors.algebra.targets import ByGroup
from conceptors.experiments.networks import AlexNet
from conceptors.experiments.stacked import (
    StackedBatchNorm,
    StackedConv2d,
    StackedLinear,
    by_channel,
    by_seed,
)

pytestmark = pytest.mark.usefixtures("double")
SEEDS = [0, 3, 8]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- AlexNet -----------------------------------------------------------------------------


class OneAlexNet(nn.Module):
    """The network of one seed."""

    def __init__(self, classes: int, seed: int, width: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7_919 + seed)
            self.conv1 = nn.Conv2d(3, width, 4, bias=False)
            self.conv2 = nn.Conv2d(width, 2 * width, 3, bias=False)
            self.conv3 = nn.Conv2d(2 * width, 4 * width, 2, bias=False)
            self.fc1 = nn.Linear(16 * width, 32 * width, bias=False)
            self.fc2 = nn.Linear(32 * width, 32 * width, bias=False)
            self.head = nn.Linear(32 * width, classes, bias=False)
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(n * width, track_running_stats=False) for n in (1, 2, 4)]
            + [nn.BatchNorm1d(32 * width, track_running_stats=False) for _ in range(2)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip((self.conv1, self.conv2, self.conv3), self.norms[:3]):
            x = functional.max_pool2d(torch.relu(norm(convolution(x))), 2)
        x = x.flatten(1)
        for layer, norm in zip((self.fc1, self.fc2), self.norms[3:]):
            x = torch.relu(norm(layer(x)))
        out: Tensor = self.head(x)
        return out


def step(model: nn.Module, x: Tensor, rate: float = 0.05) -> Tensor:
    """One step of SGD on a made-up loss that does not mix seeds; the outputs before it."""
    model.zero_grad()
    out: Tensor = model(x)
    wanted = normal(*x.shape[-4:-3], out.shape[-1], seed=9)
    (out - wanted).square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=rate / len(wanted))
    return out.detach()


def test_stacked_alexnets_are_those_of_single_seeds() -> None:
    together = AlexNet(5, SEEDS, width=4)
    alone = [OneAlexNet(5, seed, width=4) for seed in SEEDS]
    names = [name for name, _ in together.named_parameters()]
    assert names == [name for name, _ in alone[0].named_parameters()]
    for number in range(3):
        x = normal(3, 6, 3, 32, 32, seed=number)
        out = step(together, x)
        for i, one in enumerate(alone):
            torch.testing.assert_close(step(one, x[i]), out[i])
            for ours, theirs in zip(together.parameters(), one.parameters()):
                assert ours.grad is not None
                torch.testing.assert_close(ours.grad[i], theirs.grad, rtol=1e-6, atol=1e-8)
                torch.testing.assert_close(ours[i], theirs)
    together.eval()
    x = normal(3, 6, 3, 32, 32, seed=5)
    with torch.no_grad():
        for i, one in enumerate(alone):
            torch.testing.assert_close(together(x)[i], one.eval()(x[i]))


def test_the_network_of_the_experiments_begins_as_single_ones_do() -> None:
    together, x = AlexNet(100, [3, 4]), normal(2, 3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(together(x)[1], OneAlexNet(100, 4, width=64)(x[1]))


def test_seeds_do_not_meet() -> None:
    model = AlexNet(4, SEEDS, width=4)
    x = normal(3, 4, 3, 32, 32)
    out = model(x)
    out[1].square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert not parameter.grad[[0, 2]].any()
        assert bool(parameter.grad[1].any())
    other = x.clone()
    other[1] += 1
    same = (model(other) == out).flatten(1).all(1)
    assert same.tolist() == [True, False, True]


def test_dropout_is_for_training_alone() -> None:
    model, x = AlexNet(4, [0, 1], dropout=0.5, width=4), normal(2, 4, 3, 32, 32)
    with torch.no_grad():
        assert not torch.equal(model(x), model(x))
        model.eval()
        assert torch.equal(model(x), model(x))


# --- under a shield ----------------------------------------------------------------------


class Small(nn.Module):
    """A convolution, a norm and a linear layer: of one seed, or of all of them."""

    def __init__(self, layers: list[nn.Module], stacked: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.fc, self.last = layers
        self.stacked = stacked

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        if self.stacked:
            x = by_seed(functional.max_pool2d(by_channel(x), 2), len(x)).flatten(2)
        else:
            x = functional.max_pool2d(x, 2).flatten(1)
        out: Tensor = self.fc(torch.relu(self.last(x)))
        return out


def small() -> tuple[Small, list[Small]]:
    """Both, with the same weights."""
    conv, last, fc = normal(3, 4, 2, 3, 3), normal(3, 7, 16, seed=1) / 4, normal(3, 5, 7, seed=2)
    bias = normal(3, 5, seed=3)
    together: list[nn.Module] = [
        StackedConv2d(conv),
        StackedBatchNorm(3, 4),
        StackedLinear(fc, bias),
        StackedLinear(last),
    ]
    alone = []
    for i in range(3):
        layers: list[Any] = [
            nn.Conv2d(2, 4, 3, bias=False),
            nn.BatchNorm2d(4, track_running_stats=False),
            nn.Linear(7, 5),
            nn.Linear(16, 7, bias=False),
        ]
        layers[0].weight.data.copy_(conv[i])
        layers[2].weight.data.copy_(fc[i])
        layers[2].bias.data.copy_(bias[i])
        layers[3].weight.data.copy_(last[i])
        alone.append(Small(layers, stacked=False))
    return Small(together, stacked=True), alone


@pytest.mark.parametrize("rows", [None, 40])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("project", ["gradients", "inputs"])
def test_a_shield_treats_every_seed_as_one_of_its_own(
    rows: int | None, momentum: float, project: Any
) -> None:
    together, alone = small()
    models: list[nn.Module] = [together, *alone]
    shields = [Shield(m, 2.0, project=project, rows=rows, warn_at_quota=1.0) for m in models]
    optimizers = [
        shield.guard(torch.optim.SGD(m.parameters(), lr=0.02, momentum=momentum))
        for shield, m in zip(shields, models)
    ]
    for task in range(2):
        for number in range(3):
            x = normal(3, 6, 2, 6, 6, seed=10 * task + number)
            for i, (model, optimizer) in enumerate(zip(models, optimizers)):
                optimizer.zero_grad()
                model(x[i - 1] if i else x).square().sum().backward()
                optimizer.step()
        x = normal(3, 20, 2, 6, 6, seed=50 + task)
        for i, shield in enumerate(shields):
            shield.remember([x[i - 1] if i else x])
    for i, one in enumerate(alone):
        for (name, ours), theirs in zip(together.named_parameters(), one.parameters()):
            torch.testing.assert_close(ours[i], theirs, rtol=1e-7, atol=1e-9, msg=name)
        for name, conceptor in shields[0].conceptors().items():
            held = conceptor.matrix().unflatten(0, (3, -1))[i]
            torch.testing.assert_close(held, shields[1 + i].conceptors()[name].matrix())


# --- apertures of their own --------------------------------------------------------------


@pytest.mark.parametrize("hard", [False, True])
def test_every_network_of_a_stack_may_have_its_own_aperture(hard: bool) -> None:
    def network() -> nn.Module:
        return nn.Sequential(
            StackedConv2d(normal(2, 3, 2, 2, 2)), StackedBatchNorm(2, 3), nn.Flatten(2)
        )

    images, found = normal(2, 20, 2, 4, 4), []
    for aperture in (ByGroup((1.0, 5.0)), 1.0, 5.0):
        shield = Shield(network(), {"*": aperture}, hard=hard, rows=None, warn_at_quota=1.0)
        shield.remember([images])
        found.append([c.singular_values for c in shield.conceptors().values()])
    for own, first, second in zip(*found):  # norms have three groups a network
        half = len(own) // 2
        torch.testing.assert_close(own, torch.cat([first[:half], second[half:]]))


def test_apertures_that_do_not_fit_the_groups_are_refused() -> None:
    shield = Shield(nn.Sequential(StackedLinear(normal(3, 2, 4))), {"*": ByGroup((1.0, 2.0))})
    with pytest.raises(ValueError, match="2 apertures cannot be shared by 3 groups"):
        shield.remember([normal(3, 5, 4)])
