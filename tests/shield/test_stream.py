"""Data without task boundaries: training passes are observed, and remembered every few steps."""

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from conceptors import Shield, UnprotectedWarning
from helpers import drift
from shield.common import mlp, quiet, samples, train
from shield.test_padding import encoder, padded, texts

EVERY = 3


def stream(model: nn.Module, shield: Shield, rate: float = 0.0) -> Optimizer:
    return shield.guard(SGD(model.parameters(), lr=rate), remember_every=EVERY)


def step(model: nn.Module, optimizer: Optimizer, *batch: Any, **more: Any) -> None:
    optimizer.zero_grad()
    model(*batch, **more).square().mean().backward()
    optimizer.step()


def same(some: Shield, others: Shield) -> bool:
    pairs = zip(some.conceptors().values(), others.conceptors().values(), strict=True)
    return all(torch.equal(one.matrix(), other.matrix()) for one, other in pairs)


def batches(count: int = EVERY) -> list[Tensor]:
    return [samples(seed) for seed in range(count)]


def test_training_passes_are_remembered_like_data() -> None:
    """Exactly, once that many steps are done; later data like before counts less."""
    model, other = mlp(), mlp()
    shield, expected = quiet(model), quiet(other).remember(batches())
    optimizer = stream(model, shield)
    for x in batches():
        assert shield.n_tasks == 0
        with torch.no_grad():
            model(samples(8))
        model.eval()(samples(9))  # passes that are no training
        step(model.train(), optimizer, x)
    assert same(shield, expected)
    for x in batches():
        step(model, optimizer, x)
    assert shield.n_tasks == 2
    assert same(shield, expected.remember(batches(), known=0.5))


def test_the_model_is_not_called_again() -> None:
    model, calls = mlp(), list[int]()
    optimizer = stream(model, quiet(model))
    model[0].register_forward_hook(lambda *_: calls.append(1))
    for x in batches(2 * EVERY):
        step(model, optimizer, x)
    assert len(calls) == 2 * EVERY


def test_old_outputs_stay_without_boundaries() -> None:
    model, x = mlp(), samples()
    shield = Shield(model)
    optimizer = shield.guard(AdamW(model.parameters(), lr=1e-2), remember_every=20)
    train(model, optimizer, x, 40)
    before = model(x).detach()
    train(model, optimizer, samples(2), 40)
    assert shield.n_tasks == 4
    assert drift(model(x), before) < 0.2


def test_padding_does_not_count() -> None:
    model, other = encoder(), encoder()
    for layer in model.train().modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    model.mix.self_attn.dropout = 0.0
    expected = quiet(other).remember(texts()).quota()
    shield = quiet(model)
    optimizer = shield.guard(SGD(model.parameters(), lr=0.0), remember_every=1)
    step(model, optimizer, **padded())
    for name in ("words", "flat"):
        assert shield.quota()[name] == pytest.approx(expected[name], abs=1e-9)


def test_each_optimizer_counts_its_own_steps() -> None:
    model = mlp()
    shield = quiet(model)
    counted = shield.guard(SGD(model[0].parameters(), lr=0.0), remember_every=2)
    other = shield.guard(SGD(model[2].parameters(), lr=0.0))
    for optimizer, tasks in ((other, 0), (other, 0), (counted, 0), (counted, 1)):
        step(model, optimizer, samples())
        assert shield.n_tasks == tasks


def test_infinite_activations_are_left_out_with_a_warning() -> None:
    model = mlp()
    shield = quiet(model)
    optimizer = stream(model, shield)
    model(samples() * float("nan"))
    for x in batches()[1:]:
        step(model, optimizer, x)
    with pytest.warns(UnprotectedWarning, match="entered a layer in training: 0"):
        step(model, optimizer, samples(0))
    assert shield.n_tasks == 0
    for x in batches():
        step(model, optimizer, x)
    assert same(shield, quiet(mlp()).remember(batches()))


def test_steps_without_training_passes_are_an_error() -> None:
    model = mlp().eval()
    optimizer = stream(model, quiet(model))
    with pytest.raises(ValueError, match=r"no rows reached any of 2 .*; nothing was remembered"):
        train(model, optimizer, samples(), EVERY)


def test_a_loaded_shield_begins_again() -> None:
    model = mlp()
    shield, saved = quiet(model), quiet(mlp()).remember(samples(7)).state_dict()
    optimizer = stream(model, shield)
    step(model, optimizer, samples(9))
    shield.load_state_dict(saved)
    for x in batches():
        step(model, optimizer, x)
    assert same(shield, quiet(mlp()).remember(samples(7)).remember(batches(), known=0.5))


def test_copies_of_the_model_are_not_observed() -> None:
    model = mlp()
    shield = quiet(model)
    optimizer = stream(model, shield)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(samples(9)).sum().backward()
    for x in batches():
        step(model, optimizer, x)
    assert same(shield, quiet(mlp()).remember(batches()))


def test_detach_leaves_no_hooks() -> None:
    model = mlp()
    shield = quiet(model)
    optimizer = stream(model, shield)
    shield.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, samples(), EVERY)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "auto"])
def test_bad_numbers_of_steps_are_refused(every: Any) -> None:
    model = mlp()
    with pytest.raises((TypeError, ValueError), match="remember_every must be"):
        quiet(model).guard(SGD(model.parameters(), lr=0.1), remember_every=every)
