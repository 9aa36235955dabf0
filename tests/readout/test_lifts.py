"""Random features at any scale, for any first data; patches of images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors import PatchFeatures, RandomFeatures, Readout
from readout.common import DIM, assert_close, samples
from helpers import normal


def fixed(X: Tensor, count: int = 400, activation: Any = "relu", **options: Any) -> RandomFeatures:
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
    active = (fixed(X, **options)(X) > 0).float()
    assert 0.05 < float(active.mean()) < 0.95
    assert float(((active.mean(0) > 0.01) & (active.mean(0) < 0.99)).float().mean()) > 0.5
    answers = fixed(X, activation="tanh", **options)(X)
    assert float((answers.abs() > 0.99).float().mean()) < 0.1
    assert float(answers.std(0).mean()) > 0.1
    waves = fixed(X, activation="fourier", **options)(X)
    assert float(waves.std(0).mean()) > 0.2


def test_a_first_task_of_a_single_class_is_enough() -> None:
    X, y = samples(0, 500, dtype=torch.float32)
    lift = fixed(X[y == 2])
    for label in range(4):
        active = (lift(X[y == label]) > 0).float()
        assert 0.05 < float(active.mean()) < 0.95


def test_products_of_waves_are_a_gaussian_kernel() -> None:
    X = normal(0, 30, 5)
    lift = fixed(X, 40_000, "fourier", shape=0.0, spread=1.0)
    h = lift(X)
    z = X - X.mean(0)
    width = z.square().sum(1).mean()  # of W z, the mean square is 1
    wanted = torch.exp(-torch.cdist(X, X).square() / (2 * width))
    assert_close(2 * h @ h.mT / 40_000, wanted, 0.03)


def test_draws_are_seeded_and_leave_the_generator_alone() -> None:
    X = normal(0, 50, DIM).float()
    before = torch.get_rng_state()
    one, same, other = fixed(X, seed=3), fixed(X, seed=3), fixed(X, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one(X), same(X))
    assert not torch.equal(one(X), other(X))
    assert_close(fixed(X.double(), seed=3)(X), one(X), 1e-4)


def test_weights_for_images_are_smooth() -> None:
    X = normal(0, 40, 3 * 8 * 9).float()
    rough, smooth = (fixed(X, image=(3, 8, 9), smooth=sigma).weight for sigma in (0.0, 1.5))

    def roughness(weight: Tensor) -> float:
        pictures = weight.reshape(-1, 3, 8, 9)
        steps = (pictures[..., 1:] - pictures[..., :-1]).square().mean()
        return float(steps / pictures.square().mean())

    assert roughness(rough) == pytest.approx(2, rel=0.1)
    assert roughness(smooth) < 0.3
    inner = smooth.reshape(-1, 3, 8, 9)
    channels = (inner[:, 0] * inner[:, 1]).mean() / inner.square().mean()
    assert abs(float(channels)) < 0.1  # each channel by itself
    flat = fixed(X, image=(8 * 3, 9), smooth=1.5)
    assert flat(X).shape == (40, 400)
    lift = fixed(X, image=(3, 8, 9))
    assert_close(lift(X + 7), lift(X), 1e-4)  # brightness is taken off


def test_weights_look_where_data_vary() -> None:
    X = normal(0, 2000, DIM).float() * torch.tensor([10.0, 1, 1, 1, 1, 1])
    shaped, white = fixed(X, shape=0.5).weight, fixed(X, shape=0.0).weight
    share = [float(w[:, 0].square().mean() / w.square().mean()) for w in (shaped, white)]
    assert share[0] > 4
    assert share[1] == pytest.approx(1, rel=0.3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomFeatures(DIM, 3),
        lambda: PatchFeatures((1, 8, 8), 3),
        lambda: Readout(DIM).lift,
    ],
)
def test_a_lift_without_data_says_so(make: Any) -> None:
    lift = make()
    with pytest.raises(RuntimeError, match=r"call calibrate\(rows\) first"):
        lift(torch.zeros(2, lift.in_features))
    assert not lift.is_calibrated


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"image": (2, 2)}, r"image must be \(h, w\) or \(c, h, w\) with 6 numbers"),
        ({"image": (6,)}, "image must be"),
        ({"smooth": -1.0}, "smooth must be a number"),
        ({"activation": "sine"}, "activation must be one of"),
        ({"shape": 2.0}, "shape must be a number"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RandomFeatures(DIM, 4, **wrong)
    with pytest.raises(ValueError, match="in_features must be at least 1"):
        RandomFeatures(0, 4)


def test_a_module_lift_must_say_its_width() -> None:
    with pytest.raises(TypeError, match="lift ReLU needs an attribute out_features"):
        Readout(DIM, torch.nn.ReLU())
    with pytest.raises(ValueError, match="lift takes 3 features, the readout 6"):
        Readout(DIM, RandomFeatures(3, 4))
    with pytest.raises(ValueError, match="weighting must be"):
        Readout(DIM, weighting="classes")  # type: ignore[arg-type]


# --- patches --------------------------------------------------------------------------------------


def pictures(channels: int, count: int = 12, seed: int = 0) -> Tensor:
    return normal(seed, count, channels, 9, 10).cumsum(-1).float()


@pytest.mark.parametrize("kind", ["kmeans", "patches", "random"])
@pytest.mark.parametrize("channels", [1, 3])
def test_patches_of_grey_and_colour(channels: int, kind: Any) -> None:
    X = pictures(channels)
    lift = PatchFeatures((channels, 9, 10), 7, size=3, grid=2, kind=kind)
    lift.calibrate(X.flatten(1))
    h = lift(X)
    assert h.shape == (12, 28) == (12, lift.out_features)
    assert torch.equal(lift(X.flatten(1)), h)
    assert bool(h.isfinite().all())
    assert float((h > 1e-6).float().mean()) > 0.5
    again = PatchFeatures((channels, 9, 10), 7, size=3, grid=2, kind=kind)
    again.calibrate(X.flatten(1))
    assert torch.equal(again(X), h)
    assert_close(lift(X.double()), h, 1e-3)
    assert lift(X[:0]).shape == (0, 28)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_patches_at_any_contrast(scale: float) -> None:
    X = pictures(1).flatten(1)
    lifts = [PatchFeatures((1, 9, 10), 7, size=3, grid=2) for _ in range(2)]
    for lift, size in zip(lifts, (1.0, scale)):
        lift.calibrate(size * X)
    assert_close(lifts[1](scale * X), lifts[0](X), 1e-2)


@pytest.mark.parametrize("level", [0.0, 0.3])
def test_flat_images_first_do_not_spoil_it(level: float) -> None:
    lift = PatchFeatures((1, 9, 10), 7, size=3, grid=2)
    readout = Readout(90, lift).learn(torch.full((3, 90), level), torch.zeros(3, dtype=torch.long))
    h = lift(pictures(1))
    assert bool(h.isfinite().all())
    assert float((h.std(0) > 1e-3).float().mean()) > 0.5
    assert bool(readout(pictures(1)).isfinite().all())


def test_gradients_pass_patches_without_an_answer() -> None:
    X = pictures(1, 4)
    X[0] = 0.2  # a flat image: no unit answers
    lift = PatchFeatures((1, 9, 10), 7, size=3, grid=2)
    readout = Readout(90, lift).learn(X.flatten(1), torch.tensor([0, 1, 0, 1]))
    X.requires_grad_()
    readout(X).square().sum().backward()
    assert X.grad is not None
    assert bool(X.grad.isfinite().all())


def test_patches_must_fit_the_image() -> None:
    with pytest.raises(ValueError, match=r"image must be \(channels, height, width\)"):
        PatchFeatures((9, 10))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size must be in"):
        PatchFeatures((1, 4, 4), size=5)
    with pytest.raises(ValueError, match="grid must be in"):
        PatchFeatures((1, 8, 8), size=6, grid=4)
    with pytest.raises(ValueError, match="kind must be one of"):
        PatchFeatures((1, 8, 8), kind="learned")  # type: ignore[arg-type]
