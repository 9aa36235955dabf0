"""Weight norm: the direction is protected, and the magnitude follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from conceptors import Shield
from conceptors.layers.magnitude import magnitudes
from layers.case import Draw
from layers.probe import captured, joined, sites_of
from layers.references import Inputs


def linear(dim: int | None) -> nn.Module:
    layer: nn.Module = weight_norm(nn.Linear(12, 5), dim=dim)  # type: ignore[arg-type]
    return layer


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: linear(0), (12,)),
    "linear-by-input": (lambda: linear(1), (12,)),
    "linear-whole": (lambda: linear(None), (12,)),
    "linear-no-bias": (lambda: weight_norm(nn.Linear(12, 5, bias=False)), (12,)),
    "conv": (lambda: weight_norm(nn.Conv1d(6, 4, 3)), (6, 4)),
    "conv-by-tap": (lambda: weight_norm(nn.Conv1d(6, 4, 4, padding=2, groups=2), dim=2), (6, 2)),
    "conv-by-channel": (lambda: weight_norm(nn.Conv2d(6, 4, 2, groups=2), dim=1), (6, 3, 2)),
    "conv3d": (lambda: weight_norm(nn.Conv3d(2, 4, 2), dim=4), (2, 2, 3, 2)),
}

every = pytest.mark.parametrize("name", LAYERS)


def build(name: str) -> Any:
    torch.manual_seed(0)
    layer: Any = LAYERS[name][0]().double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.rand_like(p) + 0.5)
    return layer


def batch(name: str, seed: int, count: int = 2) -> Tensor:
    return Draw(seed, batch=count).x(*LAYERS[name][1])


def outputs(layer: Any, y: Tensor) -> Tensor:
    """What the layer gives without its bias, one row per place, `[g, n, out / g]`."""
    if isinstance(layer, nn.Linear):
        return (y if layer.bias is None else y - layer.bias)[None]
    last: Tensor = y.movedim(1, -1) - layer.bias
    return last.reshape(-1, layer.groups, last.shape[-1] // layer.groups).movedim(1, 0)


def learn(model: nn.Module, optimizers: list[Any], x: Tensor, steps: int = 5) -> None:
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (model(x) - 3).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


@every
def test_rows_are_what_the_direction_multiplies(name: str) -> None:
    layer, x = build(name), batch(name, 0)
    rows = joined(captured(layer, Inputs((x,), {}))[""])
    (site, *_) = sites_of(layer).values()
    found = rows @ site.matrix(site.parameters).mT
    wanted = outputs(layer, layer(x))
    steps = layer.parametrizations.weight
    if steps[0].dim == 0:  # each output has a factor, which is no matter of rows
        ratio = (steps.original0 / torch.norm_except_dim(steps.original1, 2, 0)).flatten()
        wanted = wanted / ratio.view(len(wanted), 1, -1)
    torch.testing.assert_close(found, wanted)


@every
def test_old_outputs_stay_over_three_tasks(name: str) -> None:
    layer = build(name)
    tasks = [batch(name, seed) for seed in range(3)]
    shield = Shield(layer, 1e6, hard=True)
    optimizer = shield.guard(torch.optim.AdamW(layer.parameters(), lr=0.05, weight_decay=0.1))
    before: list[Tensor] = []
    for number, x in enumerate(tasks):
        direction = layer.parametrizations.weight.original1.detach().clone()
        first = (layer(x) - 3).square().mean().item()
        learn(layer, [optimizer], x)
        assert (layer(x) - 3).square().mean().item() < first or number
        assert not torch.equal(layer.parametrizations.weight.original1, direction)
        shield.remember(x)
        before.append(layer(x).detach())
    for x, y in zip(tasks, before):
        torch.testing.assert_close(layer(x).detach(), y, rtol=1e-8, atol=1e-8)


def test_g_over_v_is_what_stays() -> None:
    layer = build("linear")
    (one,) = magnitudes(layer)
    shield = Shield(layer, 1e6, hard=True)
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.1))
    shield.remember(batch("linear", 0))
    ratio, magnitude = one.ratio(), one.parameter.detach().clone()
    learn(layer, [optimizer], batch("linear", 1))
    torch.testing.assert_close(one.ratio(), ratio, rtol=1e-12, atol=0)
    assert not torch.equal(one.parameter, magnitude)
    rows = {row.layer: row.done for row in shield.explain()}
    assert rows["parametrizations.weight.original0"].startswith("follows its direction")
    assert rows["bias"] == "held fixed: all of it is claimed"


@pytest.mark.parametrize("apart", ["magnitude", "direction"])
def test_optimizers_of_their_own_keep_to_it(apart: str) -> None:
    layer = build("linear")
    g, v = (getattr(layer.parametrizations.weight, f"original{i}") for i in range(2))
    alone, others = ([g], [v, layer.bias]) if apart == "magnitude" else ([v], [g, layer.bias])
    shield = Shield(layer, 1e6, hard=True, increment_decay=0.01)
    optimizers = [shield.guard(torch.optim.Adam(p, lr=0.05)) for p in (alone, others)]
    shield.remember(batch("linear", 0))
    before = layer(batch("linear", 0)).detach()
    learn(layer, optimizers, batch("linear", 1))
    torch.testing.assert_close(layer(batch("linear", 0)).detach(), before, rtol=1e-9, atol=1e-9)


def test_a_loaded_shield_keeps_to_it() -> None:
    layer = build("conv")
    shield = Shield(layer, 1e6, hard=True)
    shield.remember(batch("conv", 0))
    state = shield.state_dict()
    shield.detach()
    again = Shield(layer, 1e6, hard=True)
    again.load_state_dict(state)
    optimizer = again.guard(torch.optim.Adam(layer.parameters(), lr=0.05))
    before = layer(batch("conv", 0)).detach()
    learn(layer, [optimizer], batch("conv", 1))
    torch.testing.assert_close(layer(batch("conv", 0)).detach(), before, rtol=1e-9, atol=1e-9)


def test_a_frozen_direction_holds_its_magnitude() -> None:
    model: Any = nn.Sequential(build("linear"), nn.Linear(5, 2).double())
    model[0].parametrizations.weight.original1.requires_grad_(False)
    shield = Shield(model, 1e6, hard=True)
    optimizer = shield.guard(torch.optim.Adam(model.parameters(), lr=0.05))
    shield.remember(batch("linear", 0))
    before = model(batch("linear", 0)).detach()
    learn(model, [optimizer], batch("linear", 1))
    torch.testing.assert_close(model(batch("linear", 0)).detach(), before, rtol=1e-9, atol=1e-9)


def test_a_direction_whose_magnitude_may_not_follow_is_refused() -> None:
    layer = build("linear")
    layer.parametrizations.weight.original0.requires_grad_(False)
    with pytest.raises(ValueError, match=r"original1 \(ParametrizationList, shape \[5, 12\]\)"):
        Shield(layer)


def test_other_parametrizations_are_refused() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    layer = build("linear")
    parametrize.register_parametrization(layer, "weight", Doubled())
    with pytest.raises(ValueError, match="cannot be shielded"):
        Shield(layer)
