"""Attaching, options, and letting go without a trace."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from conceptors import Energy, Quota, Shield
from shield.common import mlp, quiet, samples

# --- no trace ----------------------------------------------------------------------------


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


# --- options -----------------------------------------------------------------------------


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
        ({"rows": 0}, "rows"),
        ({"warn_at_quota": 2}, "warn_at_quota"),
        ({"dtype": torch.float16}, "dtype"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    model = mlp()
    with pytest.raises((TypeError, ValueError), match=message):
        Shield(model, **options)
    Shield(model)  # nothing was attached


def test_a_dtype_too_small_for_the_aperture_is_refused() -> None:
    model = mlp()
    shield = quiet(model, 1e4, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"float32 is too small for aperture 10000.0 at layer '0'"):
        shield.remember(samples())
    assert shield.n_tasks == 0
    shield.detach()
    quiet(model, 1e4).remember(samples())


def test_targets_are_checked() -> None:
    for kind in (Quota, Energy):
        for share in (0.0, 1.1, float("nan")):
            with pytest.raises(ValueError, match=kind.__name__):
                kind(share)


def test_not_a_module() -> None:
    with pytest.raises(TypeError, match=r"needs an nn\.Module"):
        Shield([])  # type: ignore[arg-type]
