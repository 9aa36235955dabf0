"""The rows of a layer are what its weight multiplies, or the layer is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.nn.utils.spectral_norm import spectral_norm
from torch.optim import SGD, AdamW

import helpers
from conceptors import Shield
from conceptors.layers import Block, Rows, register
from promises.common import HARD, data, drift, network, outputs, train
from shield.common import train as train_on


class Model(nn.Module):
    """Uses its layers in some way of its own."""

    def __init__(self, way: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Linear(12, 64), nn.Linear(64, 3)
        self.double()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


STRAYS: dict[str, tuple[Callable[[Model, Tensor], Tensor], str]] = {
    "linear": (
        lambda m, x: m.outer(functional.linear(x, m.inner.weight, m.inner.bias).tanh()),
        r"inner \(used by linear without a call",
    ),
    "forward": (
        lambda m, x: m.outer(m.inner.forward(x).tanh()),
        r"inner \(used by linear without a call",
    ),
    "matmul": (lambda m, x: m.outer((x @ m.inner.weight.T).tanh()), r"inner \(used by \.T without"),
    "twice": (
        lambda m, x: m.outer((m.inner(x) + functional.linear(x.flip(-1), m.inner.weight)).tanh()),
        r"inner \(used by linear without a call",
    ),
}


@pytest.mark.parametrize("name", STRAYS)
def test_weights_used_without_a_call_are_named(name: str) -> None:
    way, message = STRAYS[name]
    model = Model(way)
    shield = Shield(model, **HARD)
    with pytest.raises(ValueError, match=message):
        shield.remember(data(1))
    assert not model.inner._forward_hooks
    shield.detach()
    shield = Shield(model, unsupported="freeze", **HARD).remember(data(1))
    before = outputs(model)
    train(model, shield.guard(AdamW(model.parameters(), lr=1e-2)))
    assert drift(model, before) < 1e-9


def test_looking_at_weights_is_no_use_of_them() -> None:
    def way(model: Model, x: Tensor) -> Tensor:
        kind, device = model.inner.weight.dtype, model.outer.weight.device
        assert model.inner.weight.shape == (64, 12)
        return model.outer(model.inner(x.to(kind).to(device)).tanh())  # type: ignore[no-any-return]

    assert Shield(Model(way)).remember(data(1)).n_tasks == 1


class Same(nn.Conv1d):
    """Pads by itself."""

    def forward(self, x: Tensor) -> Tensor:
        x = functional.pad(x, (1, 1))
        return functional.conv1d(x, self.weight, self.bias, self.stride, self.padding)


class Swapped(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.flip(-1), self.weight, self.bias)


class Standardised(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return functional.conv1d(x, self.weight - self.weight.mean(), self.bias)


class Attention(nn.MultiheadAttention):
    def forward(self, x: Tensor, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        return super().forward(x.flip(0), x, x)[0]


SEEN: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "same": (lambda: Same(2, 3, 3), lambda s: torch.randn(2, 2, 3, dtype=torch.float64)),
    "swapped": (lambda: Swapped(12, 3), data),
}


@pytest.mark.parametrize("name", SEEN)
def test_rows_are_as_a_subclass_makes_them(name: str) -> None:
    make, inputs = SEEN[name]
    model, old = make().double(), inputs(0)
    shield = Shield(model, **HARD).remember([old])
    before, start = model(old).detach(), model.weight.detach().clone()  # type: ignore[operator]
    train_on(model, shield.guard(AdamW(model.parameters(), lr=1e-2)), inputs(2), 5)
    assert helpers.drift(model(old), before) < 1e-9
    assert not torch.equal(start, model.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Standardised(2, 3, 3), r"Conv|Standardised \(used by .* in Standardised.forward"),
        (lambda: Attention(4, 2), "its class overrides forward: register a rule for the class"),
    ],
)
def test_what_cannot_be_seen_is_refused(model: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shield(model().double()).remember(torch.randn(4, 2, 4, dtype=torch.float64))


@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, spectral_norm])
def test_spectral_norms_are_refused_or_held(norm: Callable[[nn.Module], nn.Module]) -> None:
    model = network()
    model[0] = norm(model[0])
    with pytest.raises(ValueError, match="cannot be shielded"):
        Shield(model)
    shield = Shield(model, unsupported="freeze", **HARD)
    train(model, shield.guard(SGD(model.parameters(), lr=0.1)))
    model.eval()
    shield.remember(data(1))
    before = outputs(model)
    train(model.train(), shield.guard(AdamW(model.parameters(), lr=1e-2)))
    assert drift(model.eval(), before) < 1e-9


WRONG: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "block": (lambda x: [("b", Rows(x[None]))], r"it gave rows of 'b'; its blocks are \['a'\]"),
    "width": (
        lambda x: [("a", Rows(x[None, :, :3]))],
        r"rows must have shape \[1, n, 12\], got \[1, 20, 3\]",
    ),
    "groups": (lambda x: [("a", Rows(x))], r"rows must have shape \[1, n, 12\], got \[20, 12\]"),
    "nothing": (lambda x: [], "gave no rows of its block 'a'"),
    "failure": (lambda x: [("a", Rows(x[99]))], "failed with IndexError"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_names_the_layer_and_itself(name: str) -> None:
    rows, message = WRONG[name]

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 12, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T

    @register(Odd)
    class OddRule:
        def blocks(self, layer: Any) -> list[Block]:
            return [Block(bias=None, name="a")]

        def rows(self, layer: Any, call: Any, sample: Any) -> Any:
            yield from rows(call.args[0])

    shield = Shield(nn.Sequential(Odd()))
    with pytest.raises(ValueError, match=rf"layer 0.a \(Odd, rule OddRule\).*{message}"):
        shield.remember(data(1))
    assert shield.n_tasks == 0
