"""What `remember` does not reach is reported; layers with other inputs than before are refused."""

import gc

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


@pytest.mark.parametrize("in_place", [False, True])
def test_a_vocabulary_that_grew_is_refused(in_place: bool) -> None:
    """As transformers' resize_token_embeddings does it, in its two ways."""
    model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 3))
    shield = Shield(model).remember(torch.randint(0, 6, (50,)))
    grown = nn.Embedding(14, 6)
    if in_place:
        model[0].weight.data = grown.weight.data
    else:
        model[0] = grown
    with pytest.raises(ValueError, match=r"layer '0' has 1 inputs .*vocabulary: 14 and 10"):
        shield.guard(AdamW(model.parameters()))


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
