"""Attaching, options, which parameters are shielded, and copies of shielded models."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from conceptors import Quota, Shield
from helpers import drift
from shield.common import Unknown, mlp, quiet, samples, train


def test_a_shielded_model_can_be_copied_and_pickled_the_shield_not() -> None:
    model = mlp()
    names = list(model.state_dict())
    shield = quiet(model).remember(samples())
    assert list(model.state_dict()) == names
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(samples()), model(samples()))
    for attempt in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match=r"save shield\.state_dict"):
            attempt(shield)


def test_a_second_shield_and_a_detached_one_are_refused() -> None:
    model = mlp()
    shield = Shield(model)
    for other in (model, model[0], nn.Sequential(model)):
        with pytest.raises(ValueError, match="already has a shield"):
            Shield(other)
    shield.detach()
    with pytest.raises(ValueError, match="was detached"):
        shield.remember(samples())
    Shield(model[0])


def test_foreign_optimizers_are_refused() -> None:
    model, other = mlp(), nn.Linear(2, 2)
    shield = Shield(model)
    with pytest.raises(ValueError, match=r"1 of 5 parameters that are not.*\[\[2\]\]"):
        shield.guard(SGD([*model.parameters(), other.bias], lr=0.1))
    with pytest.raises(TypeError, match="guard needs"):
        shield.guard(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aperture": float("inf")}, "aperture"),
        ({"aperture": {}}, "empty mapping"),
        ({"aperture": {"nothing": 2.0}}, r"no aperture for layer '0'.*\['nothing'\]"),
        ({"aperture": {"2s": 3.0, "*": 9.0}}, "aperture has a pattern .* '2s'; did you mean '2'"),
        ({"aperture": Quota}, "aperture"),
        ({"increment_decay": -1.0}, "increment_decay"),
        ({"unsupported": "drop"}, "unsupported must be 'error', 'freeze' or 'ignore', got 'drop'"),
        ({"batchnorm": "off"}, "batchnorm must be"),
        ({"rank": 0}, "rank"),
        ({"rank": 1.5}, "rank"),
        ({"seed": -1}, "seed"),
        ({"exclude": [3]}, "exclude needs name patterns"),
        ({"freeze": True}, r"freeze needs name patterns .*\[True\]"),
        ({"hard": "False"}, "hard must be True or False, got 'False'"),
        ({"exclude": "encoder.*"}, r"exclude has a pattern .* 'encoder\.\*'"),
        ({"freeze": ["0", "0.wieght"]}, r"freeze has a pattern .* did you mean '0\.weight'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    model = mlp()
    with pytest.raises((TypeError, ValueError), match=message):
        Shield(model, **options)
    Shield(model)  # nothing was attached


def test_models_without_anything_to_shield_are_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        Shield(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match="everything is frozen or excluded"):
        Shield(mlp().requires_grad_(False))


@pytest.mark.parametrize(("choice", "moves"), [("freeze", False), ("ignore", True)])
def test_unsupported_parameters_are_refused_frozen_or_ignored(choice: str, moves: bool) -> None:
    model: Any = nn.Sequential(nn.Linear(10, 24), Unknown(24), nn.Linear(24, 3)).double()
    with pytest.raises(ValueError, match=r"1\.factor \(Unknown, shape \[2, 24\]\)(.|\n)*freeze"):
        Shield(model)
    shield = quiet(model, unsupported=choice)
    optimizer = shield.guard(AdamW(model.parameters(), lr=0.1))
    train(model, optimizer, samples(), steps=2)
    first = model[1].factor.detach().clone()
    assert not torch.equal(first, torch.ones(2, 24).double())  # the first task is free
    shield.remember(samples())
    train(model, optimizer, samples(4), steps=2)
    assert torch.equal(first, model[1].factor) != moves


def test_layers_can_be_excluded_or_frozen_by_name() -> None:
    model, start = mlp(), mlp()
    shield = quiet(model, 1e4, hard=True, exclude=["2"], freeze="0.bias")
    assert list(shield.quota()) == ["0"]
    optimizer = shield.guard(AdamW(model.parameters(), lr=0.01))
    shield.remember(samples())
    hidden = model[0](samples()).detach()
    train(model, optimizer, samples(2), steps=5)
    assert torch.equal(model[0].bias, start[0].bias)
    assert not torch.equal(model[2].weight, start[2].weight)
    assert not torch.equal(model[0].weight, start[0].weight)
    assert drift(model[0](samples()), hidden) < 1e-10
