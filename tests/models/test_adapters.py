"""Adapters of peft over linear layers, task after task: LoRA, DoRA, IA3."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors import Shield
from helpers import drift
from shield.common import samples

peft = pytest.importorskip("peft")

TASKS = 3
HARD: dict[str, Any] = {"aperture": 1e5, "hard": True}


class Int8Linear(nn.Linear):
    """Numbers of eight bits and a scale per output, as quantised layers have them."""

    @staticmethod
    def of(layer: nn.Linear) -> Int8Linear:
        quantised = Int8Linear(layer.in_features, layer.out_features)
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        whole = (layer.weight.detach() / scale).round().to(torch.int8)
        quantised.weight = nn.Parameter(whole, requires_grad=False)
        quantised.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
        quantised.register_buffer("scale", scale)
        return quantised

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight * self.get_buffer("scale"), self.bias)


def network() -> Any:
    torch.manual_seed(0)
    layers = {"first": nn.Linear(16, 48), "tanh": nn.Tanh(), "last": nn.Linear(48, TASKS)}
    return nn.Sequential(OrderedDict(layers))


def adapted(kind: str, quantised: bool = False) -> Any:
    model = network()
    if quantised:
        model.first, model.last = map(Int8Linear.of, (model.first, model.last))
    names = ["first", "last"]
    if kind == "IA3":
        config = peft.IA3Config(target_modules=names, feedforward_modules=["last"])
    else:
        config = peft.LoraConfig(r=8, target_modules=names, use_dora=kind == "DoRA")
    return peft.get_peft_model(model, config).eval()


def data(task: int) -> Tensor:
    """`[n, d]` in two directions."""
    return samples(task, 40, 16, 2).float()


def play(model: Any) -> tuple[list[list[float]], list[float]]:
    """Losses of every task, and the drift of outputs on the data of each at the end."""
    shield = Shield(model, **HARD)
    optimizer: Any = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    losses: list[list[float]] = []
    before: list[Tensor] = []
    for task in range(TASKS):
        x, labels = data(task), torch.full((40,), task)
        losses.append([])
        for _ in range(40):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
        shield.remember(x)
        before.append(model(x).detach())
    return losses, [drift(model(data(t)).detach(), y) for t, y in enumerate(before)]


@pytest.mark.parametrize("quantised", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("kind", ["LoRA", "DoRA"])
def test_nothing_drifts_and_every_task_is_learned(kind: str, quantised: bool) -> None:
    losses, drifts = play(adapted(kind, quantised))
    assert max(drifts) <= 1e-5
    assert all(task[-1] < 0.8 * task[0] for task in losses)


def test_the_identity_that_dora_reads_weights_with_is_no_data() -> None:
    quotas = {}
    for kind in ("LoRA", "DoRA"):
        model = adapted(kind)
        shield = Shield(model, **HARD)
        shield.remember(data(0))
        quotas[kind] = shield.quota()
    assert quotas["LoRA"] == quotas["DoRA"]
    assert quotas["DoRA"]["base_model.model.first.lora_A.default"] == 2 / 16


@pytest.mark.parametrize("kind", ["LoRA", "DoRA"])
def test_adapters_in_the_free_space_merge_without_changing_remembered_outputs(kind: str) -> None:
    model, base = adapted(kind), network()
    shield = Shield(model, hard=True).remember(data(0)).free_adapters()
    optimizer: Any = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    for _ in range(40):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(data(1)), torch.ones(40, dtype=torch.long))
        loss.backward()
        optimizer.step()
    assert loss < 0.2
    shield.remember(data(1))
    with pytest.raises(ValueError, match=r"new LoRA adapters, with B = 0"):
        shield.free_adapters()
    merged = model.merge_and_unload()
    assert drift(merged(data(0)).detach(), base(data(0)).detach()) < 1e-5
    assert drift(merged(data(1)).detach(), base(data(1)).detach()) > 0.1
    with pytest.raises(ValueError, match=r"adapters were merged.*detach\(\) this shield"):
        shield.explain()
