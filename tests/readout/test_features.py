"""Random features at any scale, for any first data; patches of images; several lifts as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors import PatchFeatures, RandomFeatures, Readout
from conceptors.readout import Scaling, SideBySide
from helpers import normal
from readout.common import DIM, assert_close, samples


def calibrated(X: Tensor, count: int = 400, activation: Any = "relu", **options: Any) -> Any:
    lift = RandomFeatures(X.shape[1], count, activation, **options)
    lift.calibrate(X)
    return lift


@pytest.mark.parametrize("options", [{}, {"shape": 0.0}, {"unit": True}, {"image": (2, 3)}])
@pytest.mark.parametrize("offset", [0.0, 5.0])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_units_are_neither_dead_nor_saturated(
    scale: float, offset: float, options: dict[str, Any]
) -> None:
    X = scale * (samples(0, 500, dtype=torch.float32)[0] + offset)
    active = (calibrated(X, **options)(X) > 0).float()
    assert 0.05 < float(active.mean()) < 0.95
    assert float(((active.mean(0) > 0.01) & (active.mean(0) < 0.99)).float().mean()) > 0.5
    outputs = calibrated(X, activation="tanh", **options)(X)
    assert float((outputs.abs() > 0.99).float().mean()) < 0.1
    assert float(outputs.std(0).mean()) > 0.1
    waves = calibrated(X, activation="fourier", **options)(X)
    assert float(waves.std(0).mean()) > 0.2


def test_products_of_waves_are_a_gaussian_kernel() -> None:
    X = normal(0, 30, 5)
    h = calibrated(X, 40_000, "fourier", shape=0.0, spread=1.0)(X)
    width = (X - X.mean(0)).square().sum(1).mean()  # the mean square of W z is 1
    kernel = torch.exp(-torch.cdist(X, X).square() / (2 * width))
    assert_close(2 * h @ h.mT / 40_000, kernel, 0.03)


def test_draws_are_seeded_and_leave_the_generator_alone() -> None:
    X = normal(0, 50, DIM).float()
    before = torch.get_rng_state()
    one, same, other = (calibrated(X, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one(X), same(X))
    assert not torch.equal(one(X), other(X))
    assert_close(calibrated(X.double(), seed=3)(X), one(X), 1e-4)


def test_weights_for_images_are_smooth() -> None:
    X = normal(0, 40, 3 * 8 * 9).float()

    def roughness(smooth: float) -> float:
        pictures = calibrated(X, image=(3, 8, 9), smooth=smooth).weight.reshape(-1, 3, 8, 9)
        steps = (pictures[..., 1:] - pictures[..., :-1]).square().mean()
        return float(steps / pictures.square().mean())

    assert roughness(0.0) == pytest.approx(2, rel=0.1)
    assert roughness(1.5) < 0.3
    lift = calibrated(X, image=(3, 8, 9))
    assert_close(lift(X + 7), lift(X), 1e-4)  # brightness is subtracted


@pytest.mark.parametrize(
    "lift",
    [RandomFeatures(DIM, 3), PatchFeatures((1, 8, 8), 3), Scaling(DIM), SideBySide(Scaling(3))],
)
def test_a_lift_without_data_says_so(lift: Any) -> None:
    with pytest.raises(RuntimeError, match=r"call calibrate\(rows\) first"):
        lift(torch.zeros(2, lift.in_features))


# --- patches --------------------------------------------------------------------------------------


def pictures(channels: int, count: int = 12) -> Tensor:
    return normal(0, count, channels, 9, 10).cumsum(-1).float()


def patches(X: Tensor) -> PatchFeatures:
    lift = PatchFeatures((X[0].numel() // 90, 9, 10), 7, size=3, grid=2)
    lift.calibrate(X.flatten(1))
    return lift


@pytest.mark.parametrize("channels", [1, 3])
def test_patches_of_grey_and_colour(channels: int) -> None:
    X = pictures(channels)
    lift = patches(X)
    h = lift(X)
    assert h.shape == (12, 28) == (12, lift.out_features)
    assert torch.equal(lift(X.flatten(1)), h)
    assert float((h > 1e-6).float().mean()) > 0.5
    assert torch.equal(patches(X)(X), h)
    assert_close(lift(X.double()), h, 1e-3)
    assert lift(X[:0]).shape == (0, 28)


def test_a_patch_responds_where_its_filter_is() -> None:
    """Images of bars: filters are bars, too, and cells say where."""
    X = torch.zeros(40, 1, 9, 10)
    for i in range(40):
        X[i, 0, :, i % 10] = 1
    lift = patches(X)
    left, right = lift(X[1:2]).view(7, 2, 2), lift(X[8:9]).view(7, 2, 2)
    assert float(left[:, :, 0].sum()) > 2 * float(left[:, :, 1].sum())
    assert float(right[:, :, 1].sum()) > 2 * float(right[:, :, 0].sum())


@pytest.mark.parametrize("level", [0.0, 0.3])
def test_flat_images_first_do_not_spoil_patches(level: float) -> None:
    h = patches(torch.full((3, 90), level))(pictures(1))
    assert bool(h.isfinite().all())
    assert float((h.std(0) > 1e-3).float().mean()) > 0.5


# --- side by side ---------------------------------------------------------------------------------


def three_parts() -> SideBySide:
    return SideBySide(
        RandomFeatures(6, 20), PatchFeatures((1, 8, 8), 5, size=3, grid=2), Scaling(4)
    )


def rows(seed: int = 0, count: int = 50) -> Tensor:
    parts = [normal(seed, count, 6), 100 * normal(seed + 1, count, 64), 1e-3 * normal(9, count, 4)]
    return torch.cat(parts, 1).float()


def test_parts_see_their_own_columns_and_have_one_size() -> None:
    lift, X = three_parts(), rows()
    lift.calibrate(X)
    assert (lift.in_features, lift.out_features) == (74, 20 + 20 + 4)
    actual, expected = lift(rows(3))[:, :20], calibrated(X[:, :6], 20)(rows(3)[:, :6])
    torch.testing.assert_close(actual / actual.norm(), expected / expected.norm())
    for part in lift(X).split([20, 20, 4], 1):
        assert float(part.var(0, correction=0).mean()) == pytest.approx(1, rel=1e-3)


def test_a_failed_first_call_leaves_the_lift_as_it_was() -> None:
    """Also a part that another readout has calibrated."""
    X, y = rows()[:, :6], torch.arange(50) % 3
    other = Readout(6, RandomFeatures(6, 20)).learn(X, y)
    scores = other(X)
    part: Any = other.lift
    readout = Readout(10, SideBySide(part, Scaling(4)))
    with pytest.raises(ValueError, match="beyond the range"):
        readout.learn(torch.cat([5 * X.double(), 1e300 * normal(3, 50, 4)], 1), y)
    assert not readout.lift.is_calibrated
    assert part.is_calibrated
    readout.learn(torch.cat([5 * X + 1, X[:, :4]], 1), y)
    torch.testing.assert_close(other(X), scores, rtol=0, atol=0)
