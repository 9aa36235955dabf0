"""A readout on a GPU is the one on the CPU, and can go from one to the other."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import PatchFeatures, RandomFeatures, Readout
from conceptors.readout import SideBySide, Sums
from gpu.test_gpu import DEVICE, pytestmark, with_tf32
from helpers import normal

__all__ = ["pytestmark", "with_tf32"]

LIFTS: dict[str, Any] = {
    "none": lambda: 0,
    "relu": lambda: RandomFeatures(64, 700, image=(8, 8)),
    "fourier": lambda: RandomFeatures(64, 300, "fourier"),
    "patches": lambda: PatchFeatures((1, 8, 8), 20, size=3, grid=2),
    "side by side": lambda: SideBySide(RandomFeatures(40, 200), RandomFeatures(24, 100)),
}


def samples(seed: int, count: int = 400) -> tuple[Tensor, Tensor]:
    y = torch.randint(5, (count,), generator=torch.Generator().manual_seed(seed))
    return (normal(9, 5, 64)[y] + normal(seed, count, 64)).float(), y


def readouts(name: str, **options: Any) -> tuple[Readout, Readout]:
    """On the CPU and on the device, with the same lift."""
    here = Readout(64, LIFTS[name](), **options).calibrate(samples(0)[0])
    return here, copy.deepcopy(here).to(DEVICE)


@pytest.mark.parametrize("name", LIFTS)
def test_scores_are_those_of_the_cpu_and_it_calibrates_there(name: str) -> None:
    here, there = readouts(name)
    for seed in range(2):
        X, y = samples(seed)
        here.learn(X, y)
        there.learn(X.to(DEVICE), y.to(DEVICE))
    X, y = samples(0)
    assert there.solution.regularization == pytest.approx(here.solution.regularization, rel=1e-5)
    scores = there(X.to(DEVICE))
    assert scores.device.type == torch.device(DEVICE).type
    torch.testing.assert_close(scores.cpu(), here(X), rtol=1e-2, atol=1e-2)
    assert torch.equal(there.counts.cpu(), here.counts)
    assert float((there.predict(X.to(DEVICE)).cpu() == y).float().mean()) > 0.9
    exported = there.export()(X.to(DEVICE))
    torch.testing.assert_close(exported, scores, rtol=1e-2, atol=1e-2)
    calibrated = Readout(64, LIFTS[name]()).to(DEVICE).learn(X.to(DEVICE), y.to(DEVICE))
    assert float((calibrated.predict(X.to(DEVICE)).cpu() == y).float().mean()) > 0.9


def test_tf32_does_not_round_the_sums() -> None:
    b, y = normal(0, 20_000, 300).float(), torch.randint(5, (20_000,))
    sums, exact = Sums(300, 5, torch.device(DEVICE)), Sums(300, 5)
    sums.add(b.to(DEVICE), y.to(DEVICE))
    exact.add(b.double(), y)
    bound = 8192 * torch.finfo(torch.float32).eps * (b.double().abs().mT @ b.double().abs())
    assert bool(((sums.gram.cpu() - exact.gram).abs() <= bound / 100).all())
    assert torch.equal(sums.squares.cpu(), exact.squares)


def test_readouts_of_different_devices_add_up() -> None:
    here, there = readouts("relu", regularization=1e-2)
    (X, y), (Z, labels) = samples(0), samples(1)
    both = here.fresh().learn(X, y).learn(Z, labels)
    here.learn(X, y)
    there.learn(Z.to(DEVICE), labels.to(DEVICE))
    for total, device in ((here + there, "cpu"), (there + here, DEVICE)):
        assert {buffer.device.type for buffer in total.buffers()} == {torch.device(device).type}
        torch.testing.assert_close(total(X.to(device)).cpu(), both(X), rtol=1e-2, atol=1e-2)
        total.learn(X.to(device), y.to(device))
    fresh = there.fresh().learn(X.to(DEVICE), y.to(DEVICE))
    assert fresh.n_samples == 400


def test_it_learns_from_a_network_there() -> None:
    X, y = samples(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh())
    batches = list(zip(X.split(90), y.split(90)))
    here = Readout(32, 50).learn_from(model, batches)
    there = Readout(32, 50).to(DEVICE).learn_from(copy.deepcopy(model).to(DEVICE), batches)
    apart = Readout(32, 50).learn_from(copy.deepcopy(model).to(DEVICE), batches)
    assert torch.equal(there.counts.cpu(), here.counts)
    assert torch.equal(apart.counts, here.counts)
