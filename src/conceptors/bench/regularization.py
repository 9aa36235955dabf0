"""regularization: accuracy of a readout whose λ is chosen, against the best λ on a grid.

One class or domain after the other, tested on validation data. The grid is relative to the mean
square of the features, half a power of ten apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from conceptors import PatchFeatures, RandomFeatures, Readout
from conceptors.bench.row import Row, Size, UnfitError, pick
from conceptors.estimators.lift import Activation, Lift
from conceptors.experiments.scenarios import build
from conceptors.experiments.scenarios.data.cache import DataUnavailableError

LOSS = 0.3  # target, points
_EXPONENTS = [k / 2 for k in range(-12, 2)]

Make = Callable[[], nn.Module]


def regularization(size: Size, device: torch.device) -> list[Row]:
    """A row for every stream and lift that fits."""
    rows: list[Row] = []
    missing = ""
    for stream, about, lift in _cases(size):
        try:
            scenario = build(
                stream,
                [0],
                tasks=10,
                heads=False,
                limit=pick(size, 400, None, None),
                progress=False,
            )
        except (DataUnavailableError, ValueError) as error:
            if not rows and stream == "clinc150":
                raise UnfitError(str(error)) from None
            continue
        readout = Readout(torch.Size(scenario.inputs).numel(), lift()).to(device)
        held: list[tuple[Tensor, Tensor]] = []
        for task in scenario.to(device).tasks:
            for split, keep in ((task.train, False), (task.validation, True)):
                places = torch.arange(split.counts[0], device=device)[None]
                for part in places.split(5000, 1):
                    x, y = split.take(part)
                    held.append((x[0], y[0])) if keep else readout.learn(x[0].flatten(1), y[0])
        rows.append(_row(f"{stream}, 10 tasks, {about}", readout, held, size))
    if not rows:
        raise UnfitError(missing)
    return rows


def _cases(size: Size) -> Iterator[tuple[str, str, Make]]:
    wide, filters = pick(size, 100, 10_000, 10_000), pick(size, 8, 1000, 1000)
    smooth: dict[str, Any] = {"image": (28, 28), "unit": True, "spread": 1.0}
    for name in ("disjoint-mnist", "disjoint-fashion"):
        yield (
            name,
            f"{wide:,} smooth cosines",
            partial(RandomFeatures, 784, wide, "fourier", **smooth),
        )
        yield name, f"{wide:,} ReLUs", partial(RandomFeatures, 784, wide, "relu")
        yield name, f"{filters:,} patches", partial(PatchFeatures, (1, 28, 28), filters, size=8)
        if size == "tiny":
            return
    patches = partial(PatchFeatures, (3, 32, 32), 1600, grid=2)
    yield "split-cifar100", "1,600 patches", patches
    kinds: tuple[Activation, ...] = ("relu", "fourier")
    for activation in kinds:
        about = f"{2 * wide:,} {activation} of 1,600 patches"
        yield "split-cifar100", about, partial(_Both, patches, 2 * wide, activation)
        about = f"{wide:,} {activation} of all layers"
        yield "clinc150", about, partial(RandomFeatures, 7 * 384, wide, activation)


class _Both(Lift):
    """Random features of patches."""

    fitted = ()

    def __init__(
        self, patches: Callable[[], PatchFeatures], count: int, activation: Activation
    ) -> None:
        made = patches()
        super().__init__(made.in_features, count)
        self.patches = made
        self.random = RandomFeatures(made.out_features, count, activation, shape=0.0)

    @property
    def is_calibrated(self) -> bool:
        return self.random.is_calibrated

    def calibrate(self, rows: Tensor) -> None:
        self.patches.calibrate(rows)
        self.random.calibrate(torch.cat([self.patches(part) for part in rows.split(1000)]))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.random(self.patches(x))
        return found


def _row(setting: str, readout: Readout, held: list[tuple[Tensor, Tensor]], size: Size) -> Row:
    chosen, amount = _accuracy(readout, held), readout.regularization
    sums = readout._total()
    scale = float(sums.gram.diagonal().mean()) / sums.count
    grid = {}
    for exponent in _EXPONENTS:
        readout._wanted, readout._solved = scale * 10.0**exponent, None
        try:
            grid[f"{exponent:g}"] = _accuracy(readout, held)
        except ValueError:
            continue  # too small for float32 products
    best = max(grid.values())
    return Row(
        "regularization",
        f"{setting}: best of a grid (plain), chosen (ours), points lost (ratio)",
        unit="%",
        plain=best,
        ours=chosen,
        ratio=best - chosen,
        target=None if size == "tiny" else LOSS,
        notes={"grid": grid, "regularization": amount, "scale": scale},
    )


@torch.no_grad()
def _accuracy(readout: Readout, held: list[tuple[Tensor, Tensor]]) -> float:
    right = sum(int((readout.predict(x) == y).sum()) for x, y in held)
    return 100 * right / sum(len(y) for _, y in held)
