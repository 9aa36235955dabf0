"""Random features at any scale, for any first data; patches of images; several lifts as one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors import PatchFeatures, RandomFeatures, Readout
from conceptors.readout import Scaling, SideBySide
from helpers import normal
from readout.common import assert_close, samples


def calibrated(X: Tensor, count: int = 400, activation: Any = "relu", **options: Any) -> Any:
    lift = RandomFeatures(X.shape[1], count, activation, **options)
    lift.calibrate(X)
    return lift


@pytest.mark.parametrize("options", [{}, {"shape": 0.0}, {"image": (2, 3)}])
@pytest.mark.parametrize("offset", [0.0, 5.0])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_units_are_not_dead(scale: float, offset: float, options: dict[str, Any]) -> None:
    X = scale * (samples(0, 500, dtype=torch.float32)[0] + offset)
    active = (calibrated(X, **options)(X) > 0).float()
    assert 0.05 < float(active.mean()) < 0.95
    assert float(((active.mean(0) > 0.01) & (active.mean(0) < 0.99)).float().mean()) > 0.5
    outputs = calibrated(X, activation="tanh", **options)(X)
    assert float((outputs.abs() > 0.99).float().mean()) < 0.1
    assert float(outputs.std(0).mean()) > 0.1
    waves = calibrated(X, activation="fourier", **options)(X)
    assert float(waves.std(0).mean()) > 0.2


def patches(X: Tensor) -> PatchFeatures:
    lift = PatchFeatures((X[0].numel() // 90, 9, 10), 7, size=3, grid=2)
    lift.calibrate(X.flatten(1))
    return lift


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("flat", [False, True])
def test_patches_of_grey_and_colour(channels: int, flat: bool) -> None:
    """Also after flat images, which show no patches."""
    X = normal(0, 12, channels, 9, 10).cumsum(-1).float()
    first = torch.full_like(X[:3], 0.3) if flat else X
    state = torch.get_rng_state()
    lift = patches(first)
    assert torch.equal(torch.get_rng_state(), state)  # draws have generators of their own
    h = lift(X)
    assert h.shape == (12, 28) == (12, lift.out_features)
    assert torch.equal(lift(X.flatten(1)), h)
    assert float((h.std(0) > 1e-3).float().mean()) > 0.5
    assert torch.equal(patches(first)(X), h)
    assert_close(lift(X.double()), h, 1e-3)
    assert lift(X[:0]).shape == (0, 28)


def test_parts_see_their_own_columns_and_have_one_size() -> None:
    patch_features = PatchFeatures((1, 8, 8), 5, size=3, grid=2)
    lift = SideBySide(RandomFeatures(6, 20), patch_features, Scaling(4))
    sizes = torch.tensor([1.0] * 6 + [100.0] * 64 + [1e-3] * 4)
    X, Z = ((normal(seed, 50, 74) * sizes).float() for seed in range(2))
    lift.calibrate(X)
    assert (lift.in_features, lift.out_features) == (74, 20 + 20 + 4)
    actual, expected = lift(Z)[:, :20], calibrated(X[:, :6], 20)(Z[:, :6])
    torch.testing.assert_close(actual / actual.norm(), expected / expected.norm())
    for part in lift(X).split([20, 20, 4], 1):
        assert float(part.var(0, correction=0).mean()) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("helps", [False, True])
def test_a_readout_uses_later_parts_where_they_help(helps: bool) -> None:
    """Otherwise it is the readout of the first part alone."""
    X, y = samples(0, 200)
    rows = torch.cat([normal(2, 200, 6), X] if helps else [X, normal(2, 200, 30)], 1)
    width = rows.shape[1] - 6
    parts = (Scaling(6), Scaling(width))
    readout = Readout(6 + width, SideBySide(*parts)).learn(rows[:90], y[:90])
    readout.learn(rows[90:], y[90:])
    assert readout.solution.uses_all == helps
    assert bool(readout.solution.weights[:, 6:-1].any()) == helps
    assert 0 < readout.solution.quota < 1
    if not helps:
        alone = Readout(6, SideBySide(Scaling(6))).learn(X[:90], y[:90])
        alone.learn(X[90:], y[90:])
        assert_close(readout(rows), alone(X), 1e-6)
