"""What `remember` does not reach is said; what has other inputs than before is refused."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = nn.Linear(6, 12), nn.Linear(12, 3), nn.Linear(12, 3)

    def forward(self, x: Tensor, head: str = "one") -> Tensor:
        found: Tensor = self.get_submodule(head)(torch.relu(self.body(x)))
        return found


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, head: str, to_none: bool = True
) -> None:
    for _ in range(3):
        optimizer.zero_grad(set_to_none=to_none)
        model(torch.randn(16, 6), head).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("tasks", [1, 2])
def test_layers_that_were_trained_and_not_reached_are_named(tasks: int) -> None:
    model = Heads()
    shield = Shield(model)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), 1e-2))
    if tasks == 2:
        train(model, optimizer, "one")
        shield.remember(torch.randn(32, 6))
    train(model, optimizer, "two")
    with pytest.warns(UnprotectedWarning, match=r"remember has reached: two\. .*\['two'\]"):
        shield.remember(torch.randn(32, 6))
    train(model, optimizer, "two")
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error", UnprotectedWarning)
        shield.remember(torch.randn(32, 6))
    assert "two" not in shield.conceptors()


@pytest.mark.parametrize("to_none", [True, False])
def test_heads_that_rest_are_not(to_none: bool) -> None:
    """Also where their gradients are 0 instead of None."""
    model = Heads()
    shield = Shield(model)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), 0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnprotectedWarning)
        for head in ("one", "two", "one"):
            train(model, optimizer, head, to_none)
            shield.remember([torch.randn(32, 6)], feed=lambda m, x, head=head: m(x, head))  # type: ignore[misc]
    assert set(shield.conceptors()) == {"body", "one", "two"}


def test_layers_with_other_inputs_than_remembered_are_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    shield = Shield(model)
    shield.guard(torch.optim.SGD(model.parameters(), 0.1))
    x = torch.randn(32, 6)
    shield.remember(x)
    model[0], model[2] = nn.Linear(6, 20), nn.Linear(20, 3)
    with pytest.raises(ValueError, match=r"layer '2' has 21 inputs now .* had 13"):
        shield.guard(torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"layer '2' has 21 inputs now"):
        shield.remember(x)
    assert shield.n_tasks == 1


class Words(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(count, 6), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.words(x).flatten(1))
        return found

    def grow(self, count: int, in_place: bool = False) -> None:
        """As transformers' resize_token_embeddings does, in its two ways."""
        before, grown = self.words, nn.Embedding(count, 6)
        with torch.no_grad():
            grown.weight[: before.num_embeddings] = before.weight
        if in_place:
            before.weight.data, before.num_embeddings = grown.weight.data, count
        else:
            self.words = grown


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("options", [{"hard": True}, {"aperture": 1e6}, {"hard": True, "rank": 1}])
@pytest.mark.parametrize("keep_tasks", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_vocabulary_may_grow(options: dict[str, Any], keep_tasks: bool, in_place: bool) -> None:
    model = Words(10)
    shield = Shield(model, keep_tasks=keep_tasks, **options)
    shield.remember(torch.randint(0, 6, (50, 2)))
    model.grow(14, in_place)
    before = model.words.weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnprotectedWarning)
        optimizer = shield.guard(torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.0))
        for _ in range(3):
            step(model, optimizer, torch.randint(0, 14, (50, 2)))
        shield.remember(torch.randint(4, 14, (200, 2)))
    moved = (model.words.weight - before).abs().amax(1)
    assert bool((moved[:6] < 1e-5).all())
    assert bool((moved[6:] > 1e-2).all())
    claimed = shield.conceptors()["words"].matrix()[:, 0, 0]
    torch.testing.assert_close(claimed, torch.ones_like(claimed))
    if keep_tasks:
        shield.forget(0)
        left = shield.conceptors()["words"].matrix()[:, 0, 0]
        assert float(left[:4].max()) < 0.5 < float(left[4:].min())


# --- optimizers that were made for other layers ------------------------------------------------


def one_task() -> tuple[Heads, Shield, torch.optim.Optimizer]:
    """Learned and remembered, of the first head."""
    model = Heads()
    shield = Shield(model)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), 0.1))
    train(model, optimizer, "one")
    shield.remember([torch.randn(32, 6)])
    return model, shield, optimizer


def test_an_optimizer_of_weights_that_are_gone_is_named() -> None:
    model, shield, optimizer = one_task()
    model.load_state_dict({n: v.clone() for n, v in model.state_dict().items()}, assign=True)
    with pytest.warns(UnprotectedWarning, match="SGD steps 6 of 6 parameters .* assign=True"):
        train(model, optimizer, "one")
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), 0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnprotectedWarning)
        train(model, optimizer, "one")
        shield.remember([torch.randn(32, 6)])
    assert shield.n_tasks == 2


def test_a_shield_that_is_gone_is_missed() -> None:
    model = Heads()
    Shield(model)  # remembered nothing
    gc.collect()
    first = Shield(model)
    first.remember([torch.randn(32, 6)])
    del first
    gc.collect()
    with pytest.warns(UnprotectedWarning, match="had remembered 1 task of this Heads is gone"):
        second = Shield(model)
    second.remember([torch.randn(32, 6)])
    second.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnprotectedWarning)
        Shield(model)
    assert second.n_tasks == 1
