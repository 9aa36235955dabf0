"""Choosing settings on validation data, never on test data.

Trials go into an optuna study in the folder, a journal file: a search can be stopped and resumed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from conceptors._internal.checks import nearest
from conceptors.experiments.engines import Engine, Local
from conceptors.experiments.events import Event, Progress, quiet
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.methods import METHODS
from conceptors.experiments.runner import Piece, placed


def tune(
    experiment: Experiment,
    folder: Path,
    *,
    spaces: Sequence[str],
    trials: int,
    minutes: float | None = None,
    progress: Progress = quiet,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """The best settings of one method: `{"value": accuracy, "params": {...}}`.

    The score is the accuracy on the validation samples of all tasks after the last one, mean over
    seeds; diverged seeds count as 0. The engine does the seeds of one trial.

    Raises:
        ExperimentError: impossible request, or the folder holds a search with other settings.
    """
    if find_spec("optuna") is None:
        raise ImportError("tuning needs optuna: pip install 'conceptors[tune]'")
    if len(experiment.methods) != 1:
        raise ExperimentError(f"tune takes one method at a time, got {experiment.methods}")
    if experiment.methods[0] not in METHODS:
        experiment.check()
    (method,), engine = experiment.methods, engine or Local()
    types = get_type_hints(METHODS[method].settings_type)
    ranges = dict(parse_range(text, types) for text in spaces)
    experiment = placed(experiment, engine, ranges)
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise ExperimentError(f"--minutes must be a finite number above 0, got {minutes:g}")

    def score(trial: Any) -> float:
        chosen = {name: suggest(trial) for name, suggest in ranges.items()}
        settings = experiment.settings.get(method, {}) | chosen
        tried = replace(experiment, settings={**experiment.settings, method: settings})
        jobs = [_Trial(Piece(tried, method, seed)) for seed in tried.seeds]
        outcomes = list(engine.work(jobs, quiet))
        for outcome in outcomes:
            if outcome.failure:
                raise RuntimeError(f"a trial failed with {chosen}:\n{outcome.failure}")
        return statistics.mean(float(outcome.value) for outcome in outcomes)

    def tell(study: Any, trial: Any) -> None:
        if trial.value is not None:
            words = ", ".join(f"{name}={value}" for name, value in trial.params.items())
            number = trial.number + 1
            event = Event("trial", method, 0, step=number, steps=trials, validation=trial.value)
            progress(replace(event, share=min(1.0, number / trials), settings=words))

    study = _open(experiment, folder)
    ended = sum(trial.state.is_finished() for trial in study.trials)
    if ended < trials:
        seconds = None if minutes is None else 60 * minutes
        study.optimize(score, n_trials=trials - ended, timeout=seconds, callbacks=[tell])
    return {"value": study.best_value, "params": study.best_params}


@dataclass(frozen=True)
class _Trial:
    """One seed of a trial: its accuracy on all tasks' validation samples."""

    piece: Piece

    def __call__(self, progress: Progress) -> float:
        learner = self.piece.learner(progress)
        tasks = learner.scenario.tasks
        for number in range(len(tasks)):
            learner.learn(number)
            if learner.diverged:
                return 0.0
        with learner.weights_for_test():
            rows = [learner.accuracy(task.validation, k) for k, task in enumerate(tasks)]
        sizes = [len(task.validation) for task in tasks]
        return sum(a * n for a, n in zip(rows, sizes)) / sum(sizes)


def _open(experiment: Experiment, folder: Path) -> Any:
    """The study in a folder; ExperimentError if it is damaged, or of another experiment."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / "study.log"
    _check_journal(journal)
    try:
        study = optuna.create_study(
            study_name=f"{experiment.scenario}/{experiment.methods[0]}",
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(journal))),
            sampler=optuna.samplers.TPESampler(),  # a seed would make processes repeat each other
            direction="maximize",
            load_if_exists=True,
        )
    except OSError:
        raise
    except Exception as error:  # optuna replays the journal, and trusts it
        raise _damaged(journal, f"{type(error).__name__}: {error!s:.200}") from error
    asked = json.dumps({**experiment.identity(), "seeds": experiment.seeds}, sort_keys=True)
    if study.user_attrs.get("asked", asked) != asked:
        raise ExperimentError(f"{folder} holds a search with other settings; choose another --out")
    study.set_user_attr("asked", asked)
    return study


def _check_journal(path: Path) -> None:
    """ExperimentError for a journal that is not one line of JSON after the other.

    A line that a killed process has left half-written counts too: the next entry would go onto it.
    """
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n"):
        raise _damaged(path, f"its last line is cut short, {len(content)} bytes")
    for number, line in enumerate(content.splitlines(), 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            raise _damaged(path, f"line {number} is not an entry")


def _damaged(path: Path, why: str) -> ExperimentError:
    words = " ".join(why.split())
    return ExperimentError(f"{path} is damaged ({words}); move it away, or choose another --out")


def parse_range(text: str, types: Mapping[str, type]) -> tuple[str, Callable[[Any], Any]]:
    """`rate=0.01:1:log`, `aperture=1:30`, `labels=all,true` as a way to ask optuna for a value.

    `types` are the types of the settings that there are.

    Raises:
        ExperimentError: not of that form, or no such setting.
    """
    name, _, values = text.partition("=")
    if not name or not values:
        raise ExperimentError(f"--vary takes NAME=LOW:HIGH[:log] or NAME=a,b,c, got {text!r}")
    if name not in types:
        raise ExperimentError(f"--vary {text}: no setting {name!r}{nearest(name, types)}")
    if ":" not in values:
        choices = values.split(",")
        return name, lambda trial: trial.suggest_categorical(name, choices)
    low, high, *scale = values.split(":")
    kind = types[name]
    if kind not in (int, float):
        raise ExperimentError(f"{text!r}: {name} is no number; give choices as {name}=a,b,c")
    try:
        bounds = kind(low), kind(high)
    except ValueError:
        raise ExperimentError(f"{text!r}: bounds must be of type {kind.__name__}") from None
    if scale not in ([], ["log"]) or not bounds[0] < bounds[1] or (scale and bounds[0] <= 0):
        raise ExperimentError(f"{text!r}: needs LOW < HIGH, and LOW > 0 with :log")
    ask = "suggest_int" if kind is int else "suggest_float"
    return name, lambda trial: getattr(trial, ask)(name, *bounds, log=bool(scale))
