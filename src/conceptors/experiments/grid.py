"""All combinations of some settings, each tried on validation data: a search that needs no optuna.

Every finished trial is a line of `trials.jsonl`. Started again, what is there is not done again;
more choices may be given then.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from conceptors._internal.files import write_atomically
from conceptors._internal.suggest import nearest
from conceptors.experiments.engines import Engine, Local
from conceptors.experiments.events import Progress
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.ledger import open_ledger
from conceptors.experiments.methods import METHODS
from conceptors.experiments.runner import placed
from conceptors.experiments.trials import Trial, TrialsError, in_words


def search(
    experiment: Experiment,
    folder: Path,
    *,
    choices: list[str],
    progress: Progress,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """The best of all combinations: `{"value": accuracy, "params": {...}}`.

    The score is the accuracy on the validation samples of all tasks after the last one, mean over
    seeds. `choices` are texts like "rate=0.1,0.3,1".

    Raises:
        ExperimentError: impossible request, or the folder holds a search with other settings.
        TrialsError: trials that failed on other machines; the rest is done and written.
    """
    if len(experiment.methods) != 1:
        raise ExperimentError(f"tune takes one method at a time, got {experiment.methods}")
    engine = engine or Local()
    experiment = placed(experiment, engine)
    combinations = _combinations(experiment, choices)
    with open_ledger(folder):
        check_asked(experiment, folder / "grid.json")
        book = Book(folder / "trials.jsonl", experiment.seeds)
        left = [settings for settings in combinations if book.find(settings) is None]
        failures = _try(experiment, left, book, engine, progress)
    lines = [line for settings in combinations if (line := book.find(settings)) is not None]
    ranked = sorted(lines, key=lambda line: -float(line["validation"]))
    best = [{"value": line["validation"], "params": line["settings"]} for line in ranked[:1]]
    if failures:
        raise TrialsError(failures, best[0] if best else None)
    return best[0]


def _try(
    experiment: Experiment,
    left: list[dict[str, Any]],
    book: Book,
    engine: Engine,
    progress: Progress,
) -> dict[str, str]:
    """Do the trials that are left and write each when its last seed is done; what failed."""
    (method,) = experiment.methods
    groups = experiment.groups(method, experiment.seeds, torch.device(experiment.device))
    jobs = [Trial(experiment, settings, seeds) for settings in left for seeds in groups]
    of_trial = [i for i in range(len(left)) for _ in groups]
    found: list[dict[int, float]] = [{} for _ in left]
    failures: dict[str, str] = {}
    before = len(book)
    for finished in engine.work(jobs, progress):
        job, number = jobs[finished.number], of_trial[finished.number]
        if finished.failure:
            failures[str(job)] = finished.failure
            continue
        found[number] |= dict(zip(job.seeds, finished.value))
        if len(found[number]) < len(experiment.seeds):
            continue
        score = book.add(left[number], [found[number][seed] for seed in experiment.seeds])
        progress(job.done(len(book), before + len(left), score))
    return failures


def _combinations(experiment: Experiment, choices: list[str]) -> list[dict[str, Any]]:
    """Every combination, as values of the settings' types; each of them checked."""
    (method,) = experiment.methods
    kind = METHODS[method].settings_type
    options: dict[str, list[str]] = {}
    for text in choices:
        name, sign, rest = text.partition("=")
        if not sign or not name or not rest or ":" in rest:
            raise ExperimentError(f"--vary takes NAME=a,b,c with --grid, got {text!r}")
        if name not in kind.__dataclass_fields__:
            raise ExperimentError(
                f"--vary {text}: no setting {name!r}{nearest(name, kind.__dataclass_fields__)}"
            )
        if name in options:
            raise ExperimentError(f"--vary {name} is given twice; put all choices into one")
        options[name] = rest.split(",")
    made: list[dict[str, Any]] = []
    for words in itertools.product(*options.values()):
        asked = dict(zip(options, words))
        try:
            config = Trial(experiment, asked, experiment.seeds).tried.config(method)
        except ValueError as error:
            raise ExperimentError(f"--vary {in_words(asked)}: {error}") from None
        settings = {name: config[name] for name in options}
        if settings not in made:  # 0.1 and 0.10 are one choice
            made.append(settings)
    return made


def check_asked(experiment: Experiment, path: Path) -> None:
    """ExperimentError if the folder holds trials of another experiment."""
    asked = json.loads(json.dumps({**experiment.identity(), "seeds": experiment.seeds}))
    if not path.exists():
        write_atomically(path, json.dumps(asked, indent=1).encode())
    try:
        held = json.loads(path.read_bytes())
    except ValueError:
        held = None
    if _with_defaults(held) != _with_defaults(asked):
        raise ExperimentError(
            f"{path.parent} holds a search with other settings; choose another --out"
        )


def _with_defaults(identity: Any) -> Any:
    """Settings that came later had their defaults in what was written before."""
    if not isinstance(identity, dict) or not isinstance(identity.get("configs"), dict):
        return identity
    configs = {
        method: {**asdict(METHODS[method].settings_type()), **own} if method in METHODS else own
        for method, own in identity["configs"].items()
    }
    return json.loads(json.dumps({**identity, "configs": configs}))


class Book:
    """`trials.jsonl`: a line for each finished trial."""

    def __init__(self, path: Path, seeds: list[int]) -> None:
        self._path = path
        self._seeds = seeds
        self._lines = list(self._read())

    def __len__(self) -> int:
        return len(self._lines)

    def find(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        return next((line for line in self._lines if line["settings"] == settings), None)

    def add(self, settings: dict[str, Any], scores: list[float]) -> float:
        """Write a trial, so that it lasts; its score."""
        score = statistics.mean(scores)
        line = {
            "settings": settings,
            "seeds": self._seeds,
            "accuracies": scores,
            "validation": score,
        }
        with self._path.open("ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._lines.append(line)
        return score

    def _read(self) -> Iterator[dict[str, Any]]:
        """The lines; half a line, which a killed process has left, is taken away."""
        if not self._path.exists():
            return
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                line = json.loads(text)
                fine = isinstance(line["settings"], dict) and math.isfinite(line["validation"])
            except (ValueError, KeyError, TypeError, RecursionError):
                fine = False
            if not fine:
                raise ExperimentError(
                    f"{self._path} is damaged (line {number} is no trial); move it away, or "
                    f"choose another --out"
                )
            yield line
        if whole != content:
            write_atomically(self._path, whole)
