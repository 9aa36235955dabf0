"""Attaching, options, which parameters are shielded, and letting go without a trace."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Quota, Shield
from shield.common import mlp, quiet, samples, train


def fingerprint(model: nn.Module) -> list[Any]:
    found: list[Any] = []
    for name, module in model.named_modules():
        state = {k: v for k, v in module.__dict__.items() if not k.startswith("_modules")}
        found.append((name, sorted(state), {k: len(v) for k, v in state.items() if "hooks" in k}))
    return found


def test_detach_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    before, keys = fingerprint(model), list(model.state_dict())
    values = copy.deepcopy(model.state_dict())
    shield = quiet(model)
    shield.guard(optimizer)
    shield.remember(samples())
    assert list(model.state_dict()) == keys
    shield.detach()
    assert fingerprint(model) == before
    assert all(torch.equal(v, values[k]) for k, v in model.state_dict().items())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    with pytest.raises(ValueError, match="was detached"):
        shield.remember(samples())
    Shield(model).detach()


def test_a_shielded_model_can_be_copied_and_pickled_the_shield_not() -> None:
    model = nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)).double()
    shield = quiet(model).remember(samples())
    model.eval()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(samples()), model(samples()))
    for attempt in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match=r"save shield\.state_dict"):
            attempt(shield)


def test_a_second_shield_is_refused() -> None:
    model = mlp()
    shield = Shield(model)
    with pytest.raises(ValueError, match="already has a shield"):
        Shield(model)
    with pytest.raises(ValueError, match="already has a shield"):
        Shield(model[0])
    with pytest.raises(ValueError, match="already has a shield"):
        Shield(nn.Sequential(model))
    shield.detach()
    Shield(model[0])
    del shield
    gc.collect()


def test_foreign_optimizers_are_refused() -> None:
    model, other = mlp(), nn.Linear(2, 2)
    shield = Shield(model)
    with pytest.raises(ValueError, match=r"1 of 5 parameters that are not.*\[\[2\]\]"):
        shield.guard(torch.optim.SGD([*model.parameters(), other.bias], lr=0.1))
    with pytest.raises(TypeError, match="guard needs"):
        shield.guard(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aperture": 0.0}, "aperture"),
        ({"aperture": float("inf")}, "aperture"),
        ({"aperture": {}}, "empty mapping"),
        ({"aperture": {"nothing": 2.0}}, r"no aperture for layer '0'.*\['nothing'\]"),
        ({"aperture": Quota}, "aperture"),
        ({"increment_decay": -1.0}, "increment_decay"),
        ({"unsupported": "drop"}, "unsupported must be one of"),
        ({"batchnorm": "off"}, "batchnorm must be one of"),
        ({"rank": 0}, "rank"),
        ({"rank": 1.5}, "rank"),
        ({"aperture": Quota(0.5), "rows": None}, "rows"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    model = mlp()
    with pytest.raises((TypeError, ValueError), match=message):
        Shield(model, **options)
    Shield(model)  # nothing was attached


class Unknown(nn.Module):
    """A layer the shield does not know: y = x ⊙ f₁ ⊙ f₂."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(2, size).double())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor.prod(0)


def with_scale(kind: type[nn.Module] = Unknown) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 24), kind(24), nn.Linear(24, 3)).double()


def test_unsupported_parameters_are_listed_and_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.factor \(Unknown, shape \[2, 24\]\)(.|\n)*freeze"):
        Shield(with_scale())


def test_unsupported_parameters_can_be_frozen_or_ignored() -> None:
    for choice, moves in {"freeze": False, "ignore": True}.items():
        model = with_scale()
        shield = quiet(model, unsupported=choice)
        optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.1))
        train(model, optimizer, samples(), steps=2)
        first = model[1].factor.detach().clone()
        assert not torch.equal(first, torch.ones(2, 24).double())  # the first task is free
        shield.remember(samples())
        train(model, optimizer, samples(4), steps=2)
        assert torch.equal(first, model[1].factor.detach()) != moves


def test_layers_can_be_excluded_or_frozen_by_name() -> None:
    model = mlp()
    shield = quiet(model, 1e4, hard=True, exclude=["2"], freeze="0.bias")
    assert list(shield.quota()) == ["0"]
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01))
    shield.remember(samples())
    hidden, head = model[0](samples()).detach(), model[2].weight.detach().clone()
    frozen = model[0].bias.detach().clone()
    train(model, optimizer, samples(2), steps=5)
    assert torch.equal(model[0].bias, frozen)
    assert not torch.equal(model[2].weight, head)
    assert not torch.equal(model[0].weight, mlp()[0].weight)
    torch.testing.assert_close(model[0](samples()).detach(), hidden, rtol=1e-10, atol=1e-10)
    shield.detach()
    with pytest.raises(TypeError, match="exclude needs name patterns"):
        Shield(model, exclude=[3])  # type: ignore[list-item]


def test_models_without_anything_to_shield_are_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        Shield(nn.Sequential(nn.ReLU()))
    frozen = mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="is everything frozen"):
        Shield(frozen)
