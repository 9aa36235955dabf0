"""Adapters of peft over linear layers, task after task: LoRA, DoRA, IA3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors import Shield
from models.measure import drift

peft = pytest.importorskip("peft")

TASKS = 3
HARD: dict[str, Any] = {"aperture": 1e5, "hard": True}


class Int8Linear(nn.Linear):
    """Numbers of eight bits and a scale per output, as quantised layers have them."""

    @staticmethod
    def of(layer: nn.Linear) -> Int8Linear:
        found = Int8Linear(layer.in_features, layer.out_features)
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        whole = (layer.weight.detach() / scale).round().to(torch.int8)
        found.weight = nn.Parameter(whole, requires_grad=False)
        found.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
        found.register_buffer("scale", scale)
        return found

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight * self.get_buffer("scale"), self.bias)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(16, 48), nn.Linear(48, TASKS)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(self.first(x)))
        return found


def adapted(kind: str, quantised: bool = False) -> Any:
    model: Any = Network()
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
    draw = torch.Generator().manual_seed(task)
    return torch.randn(40, 2, generator=draw) @ torch.randn(2, 16, generator=draw)


def play(model: Any, shielded: dict[str, Any] | None) -> tuple[list[list[float]], list[float]]:
    """Losses of every task, and how far outputs on the data of each have drifted at the end."""
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if shielded is not None:
        shield = Shield(model, **shielded)
        optimizer = shield.guard(optimizer)
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
        if shielded is not None:
            shield.remember(x)
        before.append(model(x).detach())
    return losses, [drift(model(data(t)).detach(), y) for t, y in enumerate(before)]


@pytest.mark.parametrize("quantised", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("kind", ["LoRA", "DoRA"])
def test_nothing_drifts_and_every_task_is_learned(kind: str, quantised: bool) -> None:
    losses, drifts = play(adapted(kind, quantised), HARD)
    assert max(drifts) <= 1e-5
    assert all(task[-1] < 0.8 * task[0] for task in losses)


@pytest.mark.parametrize("kind", ["LoRA", "DoRA", "IA3"])
def test_without_arguments_tasks_are_learned_and_drift_less(kind: str) -> None:
    losses, drifts = play(adapted(kind), {})
    _, plain = play(adapted(kind), None)
    assert all(task[-1] < task[0] for task in losses)
    assert sum(drifts) < 0.7 * sum(plain)


def test_vectors_of_ia3_are_full_after_a_task() -> None:
    _, drifts = play(adapted("IA3"), HARD)
    assert drifts == [0.0] * TASKS


def test_the_identity_that_dora_reads_weights_with_is_no_data() -> None:
    quotas = {}
    for kind in ("LoRA", "DoRA"):
        model = adapted(kind)
        shield = Shield(model, **HARD)
        shield.remember(data(0))
        quotas[kind] = shield.quota()
    assert quotas["LoRA"] == quotas["DoRA"]
    assert quotas["DoRA"]["base_model.model.first.lora_A.default"] == 2 / 16


def test_the_identity_itself_may_be_data() -> None:
    shield = Shield(adapted("LoRA"), **HARD)
    shield.remember(torch.eye(16))
    assert shield.quota()["base_model.model.first.lora_A.default"] == 1.0
    dora = Shield(adapted("DoRA"), **HARD)
    dora.remember(torch.eye(16))
    assert dora.quota()["base_model.model.first.lora_A.default"] == 1.0


def test_all_vectors_are_told() -> None:
    for kind, words in {"DoRA": "follows its direction", "IA3": "held fixed"}.items():
        model = adapted(kind)
        shield = Shield(model, **HARD)
        shield.remember(data(0))
        rows = {row.layer: row.done for row in shield.explain()}
        vectors = [n for n, p in model.named_parameters() if p.requires_grad and "lora_A" not in n]
        vectors = [n for n in vectors if "lora_B" not in n]
        assert len(vectors) == 2
        assert all(rows[name].startswith(words) for name in vectors)
