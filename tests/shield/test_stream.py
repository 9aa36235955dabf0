"""Data without task boundaries: training passes are observed, and remembered every few steps."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from conceptors import Shield, UnprotectedWarning
from helpers import drift, in_silence
from shield.common import mlp, quiet, samples, train
from shield.test_padding import encoder, padded, texts

BATCHES = [samples(seed) for seed in range(3)]


def stream() -> tuple[Any, Shield, Optimizer]:
    """A model that does not change, and is remembered every three steps."""
    model = mlp()
    shield = quiet(model)
    return model, shield, shield.guard(SGD(model.parameters(), lr=0.0), remember_every=3)


def step(model: nn.Module, optimizer: Optimizer, *batches: Any) -> None:
    for batch in batches:
        (model(**batch) if isinstance(batch, dict) else model(batch)).square().mean().backward()
        optimizer.step()


def remembers(shield: Shield, expected: Shield) -> bool:
    pairs = zip(shield.conceptors().values(), expected.conceptors().values(), strict=True)
    return all(torch.equal(one.matrix(), other.matrix()) for one, other in pairs)


def test_training_passes_are_remembered_like_data() -> None:
    """Exactly, from passes that are made anyway; what was remembered before counts less."""
    (model, shield, optimizer), calls = stream(), list[int]()
    model[0].register_forward_hook(lambda *_: calls.append(1))
    step(model, optimizer, *BATCHES[:2])
    with torch.no_grad():
        model(samples(8))
    model.eval()(samples(9))  # passes that are no training
    assert shield.n_tasks == 0
    step(model.train(), optimizer, BATCHES[2])
    assert remembers(shield, expected := quiet(mlp()).remember(BATCHES))
    step(model, optimizer, *BATCHES)
    assert remembers(shield, expected.remember(BATCHES, known=0.5))
    assert len(calls) == 2 + 2 + 1 + 3


def test_old_outputs_stay_without_boundaries() -> None:
    model, x = mlp(), samples()
    shield = Shield(model)
    optimizer = shield.guard(AdamW(model.parameters(), lr=1e-2), remember_every=20)
    train(model, optimizer, x, 40)
    before = model(x).detach()
    with in_silence():
        train(model, optimizer, samples(2), 40)
    assert shield.n_tasks == 4
    assert drift(model(x), before) < 0.2


def test_padding_does_not_count() -> None:
    model, expected = encoder().train(), quiet(encoder()).remember(texts()).quota()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    model.mix.self_attn.dropout = 0.0
    shield = quiet(model)
    step(model, shield.guard(SGD(model.parameters(), lr=0.0), remember_every=1), padded())
    assert [shield.quota()[name] for name in ("words", "flat")] == pytest.approx(
        [expected[name] for name in ("words", "flat")], abs=1e-9
    )


def test_each_optimizer_counts_its_own_steps() -> None:
    shield = quiet(model := mlp())
    counted = shield.guard(SGD(model[0].parameters(), lr=0.0), remember_every=2)
    other = shield.guard(SGD(model[2].parameters(), lr=0.0))
    for optimizer, tasks in ((other, 0), (other, 0), (counted, 0), (counted, 1)):
        step(model, optimizer, samples())
        assert shield.n_tasks == tasks


def test_infinite_activations_are_left_out_with_a_warning() -> None:
    model, shield, optimizer = stream()
    model(samples() * float("nan"))
    step(model, optimizer, *BATCHES[1:])
    with pytest.warns(UnprotectedWarning, match="entered a layer in training: 0"):
        step(model, optimizer, BATCHES[0])
    assert shield.n_tasks == 0
    step(model, optimizer, *BATCHES)
    assert remembers(shield, quiet(mlp()).remember(BATCHES))


def test_steps_without_training_passes_are_an_error() -> None:
    model, _, optimizer = stream()
    with pytest.raises(ValueError, match=r"no rows reached any of 2 .*; nothing was remembered"):
        step(model.eval(), optimizer, *BATCHES)


def test_loading_begins_again_and_copies_are_not_observed() -> None:
    model, shield, optimizer = stream()
    step(model, optimizer, samples(9))
    shield.load_state_dict(quiet(mlp()).remember(samples(7)).state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(samples(9)).sum().backward()
    step(model, optimizer, *BATCHES)
    assert remembers(shield, quiet(mlp()).remember(samples(7)).remember(BATCHES, known=0.5))
    shield.detach()
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
    step(model, optimizer, *BATCHES)


@pytest.mark.parametrize("every", [0, 1.5, True, "auto"])
def test_bad_numbers_of_steps_are_refused(every: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="remember_every must be"):
        quiet(model := mlp()).guard(SGD(model.parameters(), lr=0.1), remember_every=every)
