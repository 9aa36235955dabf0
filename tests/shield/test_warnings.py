"""What `remember` does not reach is reported; layers with other inputs than before are refused."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from conceptors import Shield, UnprotectedWarning
from helpers import in_silence
from shield.common import train

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = nn.Linear(6, 12), nn.Linear(12, 3), nn.Linear(12, 3)

    def forward(self, x: Tensor, head: str = "one") -> Tensor:
        return self.get_submodule(head)(torch.relu(self.body(x)))  # type: ignore[no-any-return]


def learn(model: nn.Module, optimizer: Optimizer, head: str, to_none: bool = True) -> None:
    for _ in range(3):
        optimizer.zero_grad(set_to_none=to_none)
        model(torch.randn(16, 6), head).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("tasks", [1, 2])
def test_layers_that_were_trained_and_not_reached_are_named(tasks: int) -> None:
    model = Heads()
    shield = Shield(model)
    optimizer = shield.guard(AdamW(model.parameters(), 1e-2))
    if tasks == 2:
        learn(model, optimizer, "one")
        shield.remember(X)
    learn(model, optimizer, "two")
    with pytest.warns(UnprotectedWarning, match=r"remember has reached: two\. .*\['two'\]"):
        shield.remember(X)
    learn(model, optimizer, "two")
    with in_silence():  # once is enough
        shield.remember(X)
    assert "two" not in shield.conceptors()


@pytest.mark.parametrize("to_none", [True, False])
def test_heads_that_rest_are_not_named(to_none: bool) -> None:
    """Also where their gradients are 0 instead of None."""
    model = Heads()
    shield = Shield(model)
    optimizer = shield.guard(SGD(model.parameters(), 0.1))
    with in_silence():
        for head in ("one", "two", "one"):
            learn(model, optimizer, head, to_none)
            shield.remember([(X, head)], feed=lambda m, batch: m(*batch))
    assert set(shield.conceptors()) == {"body", "one", "two"}


def test_layers_with_other_inputs_than_remembered_are_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    shield = Shield(model).remember(X)
    model[0], model[2] = nn.Linear(6, 20), nn.Linear(20, 3)
    with pytest.raises(ValueError, match=r"layer '2' has 21 inputs now .* had 13"):
        shield.guard(SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"layer '2' has 21 inputs now"):
        shield.remember(X)
    assert shield.n_tasks == 1


class Words(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(count, 6), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).flatten(1))  # type: ignore[no-any-return]

    def grow(self, count: int, in_place: bool = False) -> None:
        """As transformers' resize_token_embeddings does, in its two ways."""
        before, grown = self.words, nn.Embedding(count, 6)
        with torch.no_grad():
            grown.weight[: before.num_embeddings] = before.weight
        if in_place:
            before.weight.data, before.num_embeddings = grown.weight.data, count
        else:
            self.words = grown


@pytest.mark.parametrize("options", [{"hard": True}, {"aperture": 1e6}, {"hard": True, "rank": 1}])
@pytest.mark.parametrize("keep_tasks", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_vocabulary_may_grow(options: dict[str, Any], keep_tasks: bool, in_place: bool) -> None:
    model = Words(10)
    shield = Shield(model, keep_tasks=keep_tasks, **options)
    shield.remember(torch.randint(0, 6, (50, 2)))
    model.grow(14, in_place)
    before = model.words.weight.detach().clone()
    with in_silence():
        optimizer = shield.guard(AdamW(model.parameters(), 0.1, weight_decay=0.0))
        train(model, optimizer, torch.randint(0, 14, (150, 2)), 3)
        shield.remember(torch.randint(4, 14, (200, 2)))
    moved = (model.words.weight - before).abs().amax(1)
    assert bool((moved[:6] < 1e-5).all())
    assert bool((moved[6:] > 1e-2).all())
    claimed = shield.conceptors()["words"].matrix()[:, 0, 0]
    torch.testing.assert_close(claimed, torch.ones_like(claimed))
    if keep_tasks:
        left = shield.forget(0).conceptors()["words"].matrix()[:, 0, 0]
        assert float(left[:4].max()) < 0.5 < float(left[4:].min())


def test_a_shield_that_is_gone_is_missed() -> None:
    model = Heads()
    Shield(model)  # remembered nothing
    gc.collect()
    Shield(model).remember(X)
    gc.collect()
    with pytest.warns(UnprotectedWarning, match="had remembered 1 task of this Heads is gone"):
        second = Shield(model)
    second.remember(X).detach()
    with in_silence():
        Shield(model)


def test_optimizers_that_take_turns_are_no_foreign_code() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    shield = Shield(model).remember(X)
    makers = (AdamW(model.parameters(), 1e-2), SGD(model.parameters(), 0.1, momentum=0.9))
    optimizers = [shield.guard(optimizer) for optimizer in makers]
    with in_silence():
        for step in range(200):
            train(model, optimizers[step % 2], 2 * X[:9], steps=1)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    with pytest.warns(UnprotectedWarning, match=r"moved in protected directions.*0 \("):
        train(model, optimizers[0], X, steps=1)
