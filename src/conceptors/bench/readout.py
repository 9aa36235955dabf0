"""readout: time and memory of learning and solving many features in closed form."""

from __future__ import annotations

from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from conceptors import Readout
from conceptors._internal.precision import exactly
from conceptors.bench.measure import release, timed
from conceptors.bench.row import Row, Size, aim, pick
from conceptors.estimators.solve import solve

LEARN, SOLVE, MEMORY = 1.3, 2.0, 2.2  # targets: times two products; seconds; times d² numbers
_CLASSES = 100
_NUMBER = 8  # bytes


def readout(size: Size, device: torch.device) -> list[Row]:
    """Learning against the two products that it needs, solving, and peak memory."""
    features = (
        pick(size, 64, 20_000, 20_000) if device.type == "cuda" else pick(size, 64, 2000, 4000)
    )
    samples = 3 * features
    draw = torch.Generator(device).manual_seed(0)
    mixing = torch.randn(64, features, device=device, generator=draw)
    inner = torch.randn(samples, 64, device=device, generator=draw)
    x = torch.tanh(inner @ mixing / 8)
    y = torch.randint(_CLASSES, (samples,), device=device, generator=draw)
    setting = f"{features:,} features, {_CLASSES} classes, {samples:,} samples"
    rounds = pick(size, 1, 3, 5)
    made = Readout(features, classes=_CLASSES).to(device)
    made.learn(x[:2048], y[:2048])  # warm up
    plain, ours, solving = [], [], []
    for _ in range(rounds):
        plain.append(timed(partial(_two_products, x, y), device))
        made = made.fresh()
        release(device)
        ours.append(timed(partial(made.learn, x, y), device))
        solving.append(timed(partial(getattr, made, "solution"), device))
    rows = [
        Row(
            "readout",
            f"{setting}: learn, against the two products XᵀX and YᵀX",
            plain=median(plain),
            ours=median(ours),
            ratio=median(ours) / median(plain),
            target=aim(LEARN, size, device),
            notes={"plain": plain, "ours": ours},
        ),
        Row(
            "readout",
            f"{setting}: solve, regularization chosen",
            ours=median(solving),
            target=aim(SOLVE, size, device),
            notes={"seconds": solving, "regularization": made.regularization},
        ),
    ]
    if device.type == "cuda":
        rows.append(_memory(setting, made, x, y, size, device))
    return rows


def _memory(
    setting: str, made: Readout, x: Tensor, y: Tensor, size: Size, device: torch.device
) -> Row:
    """Peak memory of learning and solving, beside the samples themselves."""
    made = made.fresh()
    release(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    solve(made.learn(x, y)._total())
    numbers = (torch.cuda.max_memory_allocated(device) - before) / _NUMBER / x.shape[1] ** 2
    return Row(
        "readout",
        f"{setting}: peak memory, in d² numbers of float64",
        unit="",
        ours=numbers,
        target=aim(MEMORY, size, device),
    )


@exactly()
def _two_products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    wanted = functional.one_hot(y, _CLASSES).to(x)
    return x.mT @ x, wanted.mT @ x
