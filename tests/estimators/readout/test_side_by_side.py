"""Lifts of parts of the input, as one lift."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from conceptors import PatchFeatures, RandomFeatures, Readout, SideBySide
from conceptors.estimators.lift import Scaling
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
