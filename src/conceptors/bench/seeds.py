"""seeds, permuted: whole experiments with all seeds stacked as one network."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from conceptors.bench.data import digits
from conceptors.bench.measure import timed
from conceptors.bench.row import Row, Size, UnfitError, aim, pick
from conceptors.experiments.events import quiet
from conceptors.experiments.results import Results
from conceptors.experiments.runner import Experiment, run
from conceptors.experiments.scenarios.data import Arrays, DataUnavailableError


def seeds(size: Size, device: torch.device) -> list[Row]:
    """Ten seeds of disjoint MNIST at once against one at a time.

    One at a time, two are measured and the time multiplied; all of them at full size on a GPU.
    On a GPU a step is recorded and replayed; for comparison also without that.
    """
    cuda = device.type == "cuda"
    count = pick(size, 2, 10 if cuda else 4, 10)
    alone = count if cuda and size == "full" else 2
    _timed("disjoint-mnist", 1, 1, size, device, few=True)  # warm up
    together, stacked = _timed("disjoint-mnist", count, count, size, device)
    apart, single = _timed("disjoint-mnist", alone, 1, size, device)
    launched, _ = _timed("disjoint-mnist", 1, 1, size, device, replay=False)
    what = f"disjoint MNIST, paper's CAB{_short(size, device)}, {count} seeds at once"
    found = [
        Row(
            "seeds",
            what,
            ours=together,
            target=aim(10.0, size, device),
            notes={
                "largest_difference_of_accuracy_percent": _difference(stacked, single),
                "accuracy": [r.final_accuracy for r in stacked.runs],
            },
        )
    ]
    for note, seconds in (
        (f"one at a time ({alone} measured), each step replayed", apart * count / alone),
        ("one at a time (1 measured), each kernel launched", launched * count),
    ):
        found.append(
            Row(
                "seeds",
                f"{what}, against {note}",
                plain=seconds,
                ours=together,
                ratio=together / seconds,
                target=aim(1 / 6, size, device),
            )
        )
    return found


def permuted(size: Size, device: torch.device) -> list[Row]:
    """Ten tasks of permuted MNIST, ten seeds."""
    count = pick(size, 2, 10 if device.type == "cuda" else 1, 10)
    _timed("disjoint-mnist", 1, 1, size, device, few=True)  # warm up
    seconds, results = _timed("permuted-mnist", count, count, size, device)
    return [
        Row(
            "permuted",
            f"permuted MNIST, paper's CAB{_short(size, device)}: all tasks, {count} seeds at once",
            ours=seconds,
            target=aim(30.0, size, device),
            notes={"accuracy": [r.final_accuracy for r in results.runs]},
        )
    ]


def _timed(
    scenario: str,
    count: int,
    stacked: int,
    size: Size,
    device: torch.device,
    *,
    few: bool = False,
    replay: bool = True,
) -> tuple[float, Results]:
    """Seconds and results of a run that starts from nothing."""
    shorter = {"steps": pick(size, 4, 300, 300), "check_every": pick(size, 2, 100, 100)}
    small: dict[str, Any] = {"hidden": "8", "batch": 8} if size == "tiny" else {}
    experiment = Experiment(
        scenario,
        ["cab"],
        list(range(count)),
        preset="paper",
        options={"tasks": 2} if size == "tiny" and scenario == "permuted-mnist" else {},
        settings={"*": {**shorter, **small}} if few or _short(size, device) else {},
        device=str(device),
        stacked=stacked,
        replay=replay,
        arrays=_made_up() if size == "tiny" else None,
    )
    results: list[Results] = []
    with tempfile.TemporaryDirectory() as folder:

        def go() -> None:
            results.append(run(experiment, Path(folder), progress=quiet))

        try:
            seconds = timed(go, device)
        except DataUnavailableError as error:
            raise UnfitError(f"no MNIST here ({str(error).splitlines()[0]})") from error
    return seconds, results[0]


def _short(size: Size, device: torch.device) -> str:
    """Said where a run is cut short."""
    return "" if size == "full" or (size == "quick" and device.type == "cuda") else ", few steps"


def _difference(stacked: Results, single: Results) -> float:
    """Largest difference of any accuracy that both runs have, in percent."""
    both = zip(stacked.runs, single.runs)
    return max(
        abs(float(a) - float(b))
        for one, other in both
        for ours, theirs in zip(one.accuracy, other.accuracy)
        for a, b in zip(ours, theirs)
    )


def _made_up() -> Arrays:
    """Digits in the form of MNIST."""
    _, x, y = digits("tiny")
    x = (255 * x).byte().view(-1, 28, 28)
    return Arrays(x[:200], y[:200].byte(), x[200:], y[200:].byte())
