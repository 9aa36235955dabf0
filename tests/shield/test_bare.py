"""Bare parameters, such as tokens, positions and scales, are fixed once a task has used them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import drift
from shield.common import quiet, samples, train

WIDTH = 6


class Scaling(nn.Module):
    """A bare parameter, used in one of the ways that people write."""

    def __init__(self, how: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(shape) + 0.5)
        self.how = how
        self.inner = nn.Identity()  # a module with parts, which is no layer

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.inner(x), self.scale)


def in_a_kernel(x: Tensor, scale: Tensor) -> Tensor:
    """Where no mode sees it."""
    with torch._C.DisableTorchFunction():
        return x * scale


def put_in(x: Tensor, token: Tensor) -> Tensor:
    """In the place of some rows, as masks are."""
    x = x.clone()
    x[:, 1] = token.to(x.dtype)
    return x


WAYS: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor], Tensor]]] = {
    "vector": ((WIDTH,), lambda x, s: x * s),
    "column": ((WIDTH, 1), lambda x, s: (s * x.mT).mT),
    "beside-one": ((WIDTH,), lambda x, s: x * (1 + s.float().double())),
    "added": ((WIDTH,), lambda x, s: x + s),
    "out-of-sight": ((WIDTH,), in_a_kernel),
    "put-in": ((WIDTH,), put_in),
    "read": ((1,), lambda x, s: x * s.item() + 0 * s),
}


def draw(seed: int, rank: int = 2) -> Tensor:
    """`[5, 3, d]` in a few directions, with a channel that is always zero."""
    return samples(seed, 15, WIDTH, rank).view(5, 3, WIDTH) * (torch.arange(WIDTH) > 0)


def network(first: nn.Module) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(first, nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 2)).double()


@pytest.mark.parametrize("name", WAYS)
def test_a_used_parameter_is_held_whatever_it_is_used_for(name: str) -> None:
    shape, how = WAYS[name]
    model, x = network(Scaling(how, *shape)), draw(0)
    shield = quiet(model, 1e6, hard=True)
    optimizer = shield.guard(torch.optim.Adam(model.parameters(), lr=0.01))
    shield.remember(x)
    before, scale = model(x).detach(), model[0].scale.detach().clone()
    train(model, optimizer, draw(1), steps=5)
    assert torch.equal(model[0].scale, scale)
    assert drift(model(x), before) < 1e-9
    (row,) = [row for row in shield.explain() if row.layer == "0.scale"]
    assert (row.done, row.quota) == ("fixed: all of it is protected", 1.0)


class Prompts(nn.Module):
    """One vector per task, and a vector of another module, which is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts = nn.ParameterList(torch.rand(WIDTH) for _ in range(2))
        self.shift = nn.Module()
        self.shift.vector = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor, task: int = 0) -> Tensor:
        return torch.add(self.prompts[task] * x, self.shift.vector)  # type: ignore[arg-type]


@pytest.mark.parametrize("aperture", [3.0, "auto"])
def test_a_parameter_that_no_task_used_stays_free(aperture: Any) -> None:
    model: Any = Prompts().double()
    shield = quiet(model, aperture)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1))
    shield.remember(draw(0))
    quotas = {"prompts.0": 1.0, "prompts.1": 0.0, "shift.vector": 1.0}
    assert shield.quota() == quotas
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.zero_grad()
    model(draw(1), 1).square().sum().backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (quotas[name] == 1.0)
