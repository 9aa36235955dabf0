"""The untuned suite: sequences x optimizers x {plain, shield, readout, best of a grid, joint}, by
seeds.

Every run of training is a cell. Cells run side by side in processes, and with a folder each one is
on disk when it ends, so that a suite that was stopped resumes where it was.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from conceptors._internal.files import write_atomically
from conceptors.bench.row import Row, Size, UnfitError, pick
from conceptors.bench.untuned import catalogue
from conceptors.bench.untuned.sequence import Kind, Rate, learn

APERTURES = (1.0, 3.0, 9.0, 27.0, 81.0, 243.0)
FACTORS = (0.3, 1.0, 3.0)  # of the rate
_RATES = (Rate("AdamW", 1e-3), Rate("SGD", 0.1))
_PRETRAINED = (Rate("AdamW", 1e-4),)


@dataclass(frozen=True)
class Cell:
    """One run of training."""

    sequence: str
    optimizer: Rate
    kind: Kind
    seed: int
    aperture: float | str = "auto"

    @property
    def key(self) -> str:
        way = self.kind if self.aperture == "auto" else f"aperture {self.aperture:g}"
        name = f"{self.optimizer.name} {self.optimizer.rate:g}"
        return f"{self.sequence} | {name} | {way} | seed {self.seed}"


def untuned(
    size: Size,
    device: torch.device,
    folder: Path | None = None,
    only: Iterable[str] = (),
    grid: bool | None = None,
) -> list[Row]:
    """One row per sequence and optimizer: plain, `Shield(model)`; the rest in the notes.

    Args:
        only: names, or parts of names, of sequences; by default those that fit the size.
        grid: also search 6 apertures x 3 rates with seed 0, on validation data (full size only by
            default), and run what was best with all seeds.
    """
    small = [s.name for s in catalogue.DIGITS]
    named = pick(size, [small[0], small[4]], [*small, *(s.name for s in catalogue.REGRESSION)], [])
    chosen = [name for name in catalogue.ALL if not named or name in named]
    only = list(only)
    if only:
        chosen = [name for name in catalogue.ALL if any(part in name for part in only)]
        if not chosen:
            raise ValueError(f"no sequence has any of {only} in its name")
    seeds = list(range(pick(size, 1, 1, 3)))
    grid = size == "full" if grid is None else grid
    runner = Runner(device, folder)
    pairs = []
    for name in chosen:
        if _fits(name):
            rates = _PRETRAINED if catalogue.ALL[name].pretrained else _RATES
            pairs += [(name, rate) for rate in rates]
    kinds: tuple[Kind, ...] = ("plain", "shield", "readout", "joint")
    runner.run(
        [
            Cell(n, r, kind, s)
            for n, r in pairs
            for kind in kinds
            for s in seeds
            if kind != "readout" or not catalogue.ALL[n].pretrained  # see `conceptors bench body`
        ]
    )
    best: dict[tuple[str, Rate], Cell] = {}
    if grid:
        tried = {pair: _grid(*pair) for pair in pairs}
        runner.run([cell for cells in tried.values() for cell in cells])
        best = {
            pair: max(cells, key=lambda c: _mean(runner.done[c.key]["validation"]))
            for pair, cells in tried.items()
        }
        runner.run([replace(cell, seed=s) for cell in best.values() for s in seeds])
    found = [_row(*pair, seeds, runner.done, best.get(pair)) for pair in pairs]
    return [replace(row, target=None) for row in found] if size == "tiny" else found


def _fits(name: str) -> bool:
    """Whether a sequence's data is here; says if not."""
    try:
        catalogue.ALL[name].lessons()
    except UnfitError as error:
        print(f"left out: {name}: {error}", file=sys.stderr)
        return False
    return True


def _grid(name: str, rate: Rate) -> list[Cell]:
    return [
        Cell(name, replace(rate, rate=rate.rate * factor), "shield", 0, aperture)
        for aperture in APERTURES
        for factor in FACTORS
    ]


class Runner:
    """Runs cells that are not on disk yet; `done` has their scores by key."""

    def __init__(self, device: torch.device, folder: Path | None) -> None:
        self.device = device
        self._file = None if folder is None else folder / f"untuned-cells-{device.type}.json"
        self.done: dict[str, dict[str, list[float]]] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if self._file is not None and self._file.is_file():
            self.done = json.loads(self._file.read_text(encoding="utf-8"))

    def run(self, cells: list[Cell]) -> None:
        """Cells side by side; in this process if there is but one to run at a time."""
        left = list({cell.key: cell for cell in cells if cell.key not in self.done}.values())
        jobs = min(len(left), _jobs(self.device))
        if jobs <= 1:
            self._keep((run_cell((cell, str(self.device))) for cell in left), len(left))
            return
        context = multiprocessing.get_context("spawn")  # CUDA cannot be forked
        with context.Pool(jobs) as pool:
            work = [(cell, str(self.device)) for cell in left]
            self._keep(pool.imap_unordered(run_cell, work), len(left))

    def _keep(self, found: Iterable[tuple[str, dict[str, list[float]]]], count: int) -> None:
        for number, (key, scores) in enumerate(found, 1):
            self.done[key] = scores
            print(f"  {number}/{count} {key}: {_mean(scores['test']):.1f}", file=sys.stderr)
            if self._file is not None:
                lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(self.done.items())]
                write_atomically(self._file, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def run_cell(work: tuple[Cell, str]) -> tuple[str, dict[str, list[float]]]:
    """One run of training."""
    cell, name = work
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the fastest for networks so small, and they run side by side
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = learn(
                catalogue.ALL[cell.sequence],
                cell.kind,
                cell.optimizer,
                seed=cell.seed,
                device=torch.device(name),
                aperture=cell.aperture,
            )
    finally:
        torch.set_num_threads(threads)
    return cell.key, found


def _jobs(device: torch.device) -> int:
    """Small networks leave a GPU idle: many share it."""
    cores = os.cpu_count() or 1
    return max(1, min(14, cores - 1)) if device.type == "cuda" else cores


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _row(
    name: str,
    rate: Rate,
    seeds: list[int],
    done: dict[str, dict[str, list[float]]],
    best: Cell | None,
) -> Row:
    """Means over tasks, then over seeds; the standard deviation over seeds."""

    def scores(cell: Cell, part: str = "test") -> list[float]:
        return [_mean(done[replace(cell, seed=seed).key][part]) for seed in seeds]

    def spread(values: list[float]) -> float:
        return statistics.stdev(values) if len(values) > 1 else 0.0

    plain, ours, joint = (
        scores(Cell(name, rate, kind, 0)) for kind in ("plain", "shield", "joint")
    )
    shield = [done[Cell(name, rate, "shield", seed).key] for seed in seeds]
    notes: dict[str, Any] = {
        "plain": [_mean(plain), spread(plain)],
        "shield": [_mean(ours), spread(ours)],
        "joint": [_mean(joint), spread(joint)],
        "seeds": seeds,
        "tasks": shield[0]["test"],
        "forgetting": _mean(
            [_mean([a - b for a, b in zip(one["learned"], one["test"])]) for one in shield]
        ),
    }
    about = f"joint {_mean(joint):.1f}"
    if not catalogue.ALL[name].pretrained:
        read = scores(Cell(name, rate, "readout", 0))
        notes["readout"] = [_mean(read), spread(read)]
        about = f"readout {_mean(read):.1f}, {about}"
    if best is not None:
        grid = scores(best)
        notes["grid"] = [_mean(grid), spread(grid)]
        notes["grid_setting"] = best.key
        about += f", best of grid {_mean(grid):.1f}"
    first = rate in (_RATES[0], *_PRETRAINED)
    return Row(
        "untuned",
        f"{name}, {rate.name} {rate.rate:g} ({about}, sd {spread(ours):.1f})",
        unit="%",
        plain=_mean(plain),
        ours=_mean(ours),
        target=catalogue.ALL[name].target if first else None,
        more=True,
        notes=notes,
    )
