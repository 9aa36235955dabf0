"""Lifts of parts of the input, as one lift."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from conceptors import PatchFeatures, RandomFeatures, Readout, SideBySide
from conceptors.readout import Scaling
from helpers import normal


def made(seed: int = 0) -> SideBySide:
    return SideBySide(
        RandomFeatures(6, 20, seed=seed), PatchFeatures((1, 8, 8), 5, size=3, grid=2), Scaling(4)
    )


def rows(seed: int = 0, count: int = 50) -> Tensor:
    parts = [normal(seed, count, 6), 100 * normal(seed + 1, count, 64), 1e-3 * normal(9, count, 4)]
    return torch.cat(parts, 1).float()


def test_each_part_sees_its_own_columns() -> None:
    lift, x = made(), rows()
    lift.calibrate(x)
    assert (lift.in_features, lift.out_features) == (74, 20 + 20 + 4)
    other = RandomFeatures(6, 20)
    other.calibrate(x[:, :6])
    found, wanted = lift(rows(3))[:, :20], other(rows(3)[:, :6])
    torch.testing.assert_close(found / found.norm(), wanted / wanted.norm())


def test_parts_are_of_one_size_whatever_their_inputs() -> None:
    lift, x = made(), rows()
    lift.calibrate(x)
    for part in lift(x).split([20, 20, 4], 1):
        assert float(part.var(0, correction=0).mean()) == pytest.approx(1, rel=1e-3)


def right(readout: Readout, x: Tensor, y: Tensor) -> float:
    """Share of new samples that are told right."""
    readout.learn(x[:1000], y[:1000])
    return float((readout.predict(x[1000:]) == y[1000:]).float().mean())


def test_a_readout_of_both_is_better_than_of_each() -> None:
    """Two inputs, of which each tells half."""
    x, other = normal(0, 1500, 3).float(), normal(1, 1500, 3).float()
    y = (x[:, 0] > 0).long() + 2 * (other[:, 0] > 0).long()
    lift = SideBySide(RandomFeatures(3, 100), RandomFeatures(3, 100, seed=1))
    assert right(Readout(6, lift), torch.cat([x, other], 1), y) > 0.85
    for one in (x, other):
        assert right(Readout(3, 200), one, y) < 0.6


def test_it_is_kept_merged_and_exported_as_other_lifts() -> None:
    x, y = rows(count=60), torch.arange(60) % 3
    readout = Readout(74, made()).learn(x, y)
    again = Readout(74, made())
    again.load_state_dict(readout.state_dict())
    torch.testing.assert_close(again(x), readout(x))
    parts = [readout.fresh().learn(x[i::2], y[i::2]) for i in range(2)]
    torch.testing.assert_close((parts[0] + parts[1])(x), readout(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(readout.export()(x), readout(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="different lifts"):
        _ = readout + Readout(74, made(seed=1)).learn(x, y)


def test_a_calibration_that_fails_leaves_nothing() -> None:
    lift = made()
    with pytest.raises(RuntimeError, match=r"call calibrate\(rows\) first"):
        lift(rows())
    broken = rows()
    broken[:, -4:] *= 1e38
    broken[:, -4:] *= 1e38
    with pytest.raises(ValueError, match="beyond the range"):
        lift.calibrate(broken)
    assert not lift.is_calibrated
    assert not any(part.is_calibrated for part in lift.parts)
    lift.calibrate(rows())
    assert lift.is_calibrated
    lift.reset()
    assert not lift.is_calibrated


def test_what_is_no_lift_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one lift"):
        SideBySide()
    with pytest.raises(TypeError, match=r"takes lifts, such as RandomFeatures.*got Linear"):
        SideBySide(nn.Linear(3, 4))  # type: ignore[arg-type]
    lift = RandomFeatures(3, 4)
    with pytest.raises(ValueError, match="one lift twice"):
        SideBySide(lift, lift)
    fixed = SideBySide(lift, Scaling(2))
    with pytest.raises(ValueError, match=r"\[3, 2\] = 5 features side by side, got 6"):
        fixed.calibrate(torch.ones(4, 6))


def test_a_lift_that_is_fixed_stays_so() -> None:
    """It may be another readout's."""
    x, y = rows()[:, :6], torch.arange(50) % 3
    readout = Readout(6, RandomFeatures(6, 20)).learn(x, y)
    before = readout(x)
    lift = SideBySide(readout.lift, Scaling(4))  # type: ignore[arg-type]
    Readout(10, lift).learn(torch.cat([5 * x + 1, x[:, :4]], 1), y)
    torch.testing.assert_close(readout(x), before, rtol=0, atol=0)
    broken = SideBySide(readout.lift, Scaling(4))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="beyond the range"):
        broken.calibrate(torch.cat([x.double(), 1e300 * normal(3, 50, 4)], 1))
    assert readout.lift.is_calibrated


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_that_does_not_vary_yet_is_not_blown_up(dtype: torch.dtype) -> None:
    lift = SideBySide(RandomFeatures(6, 20), Scaling(4))
    x = torch.cat([normal(0, 50, 6), torch.full((50, 4), 0.3).double()], 1).to(dtype)
    lift.calibrate(x)
    assert float(lift.scale.max()) < 100


@pytest.mark.parametrize("part", ["scale", "parts.0", "parts.1"])
def test_a_state_without_some_of_it_is_refused(part: str) -> None:
    x, y = rows(), torch.arange(50) % 3
    state = Readout(74, made()).learn(x, y).state_dict()
    torn = {key: value for key, value in state.items() if not key.startswith(f"lift.{part}")}
    again = Readout(74, made())
    with pytest.raises(RuntimeError, match=r"lift"):
        again.load_state_dict(torn)
    assert again.n_samples == 0
    assert not again.lift.is_calibrated
    alone = made()
    if part == "scale":
        return  # parts may be fixed before they are side by side
    with pytest.raises(RuntimeError, match="Missing key"):
        alone.load_state_dict({k[5:]: v for k, v in torn.items() if k.startswith("lift.")})
