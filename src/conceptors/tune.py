"""Choosing settings on validation data: never on test data.

Trials go into an optuna study in the folder, so that a search can be stopped and go on, and
several processes can work on it at once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from conceptors.experiment import Experiment, ExperimentError, _check, _device
from conceptors.methods import METHODS, parse_settings
from conceptors.scenarios import build


def tune(
    experiment: Experiment,
    folder: Path,
    *,
    spaces: list[str],
    trials: int,
    minutes: float | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """The best settings of one method: `{"value": accuracy, "params": {...}}`.

    The score is the accuracy on the validation samples of all tasks after the last one, mean over
    seeds.
    """
    try:
        import optuna
    except ImportError:
        raise ImportError("tuning needs optuna: pip install 'conceptors[tune]'") from None
    if len(experiment.methods) != 1:
        raise ExperimentError(f"tune takes one method at a time, got {experiment.methods}")
    _check(experiment)
    ranges = [parse_range(text) for text in spaces]
    (method,) = experiment.methods
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.log"))
    study = optuna.create_study(
        study_name=f"{experiment.scenario}/{method}",
        storage=optuna.storages.JournalStorage(backend),
        sampler=optuna.samplers.TPESampler(seed=0, multivariate=True),
        direction="maximize",
        load_if_exists=True,
    )
    until = time.monotonic() + 60 * minutes if minutes else None

    def objective(trial: Any) -> float:
        chosen = {name: suggest(trial, name) for name, suggest in ranges}
        settings = {**experiment.settings}
        settings[method] = {**settings.get(method, {}), **chosen}
        score = validation_accuracy(replace(experiment, settings=settings), method, progress)
        progress(f"trial {trial.number}: {score:.2f} % with {chosen}")
        return score

    def enough(held: Any, trial: Any) -> None:
        finished = sum(t.state.is_finished() for t in held.trials)
        if finished >= trials or (until is not None and time.monotonic() > until):
            held.stop()

    if sum(t.state.is_finished() for t in study.trials) < trials:
        study.optimize(objective, callbacks=[enough], timeout=60 * minutes if minutes else None)
    return {"value": study.best_value, "params": study.best_params}


def validation_accuracy(
    experiment: Experiment, method: str, progress: Callable[[str], None]
) -> float:
    """Accuracy on all tasks' validation samples after learning all tasks, mean over seeds."""
    device = _device(experiment.device)
    at_once = experiment.stacked or (len(experiment.seeds) if device.type == "cuda" else 1)
    scores: list[float] = []
    for i in range(0, len(experiment.seeds), at_once):
        seeds = experiment.seeds[i : i + at_once]
        scenario = build(experiment.scenario, seeds, **experiment.options, progress=False).to(
            device
        )
        kind = METHODS[method]
        settings = parse_settings(kind.settings_type, experiment.config(method))
        torch.manual_seed(seeds[0])
        learner = kind(scenario, settings, device, lambda text: None)
        for number in range(len(scenario.tasks)):
            learner.learn(number)
        with learner.weights_for_test():
            rows = [learner.accuracy(task.validation, k) for k, task in enumerate(scenario.tasks)]
        sizes = torch.tensor([task.validation.sizes() for task in scenario.tasks])
        weighted = (torch.stack(rows) * sizes).sum(0) / sizes.sum(0)
        scores += weighted.tolist()
    return statistics.mean(scores)


def parse_range(text: str) -> tuple[str, Callable[[Any, str], Any]]:
    """`rate=0.01:1:log`, `aperture=1:30`, `labels=all,true` as a way to ask optuna for a value.

    Raises:
        ExperimentError: not of that form.
    """
    name, sign, rest = text.partition("=")
    if not sign or not name or not rest:
        raise ExperimentError(f"--vary takes NAME=LOW:HIGH[:log] or NAME=a,b,c, got {text!r}")
    if ":" not in rest:
        choices = rest.split(",")
        return name, lambda trial, key: trial.suggest_categorical(key, choices)
    low, high, *scale = rest.split(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise ExperimentError(f"{text!r}: {low!r} and {high!r} must be numbers") from None
    if scale not in ([], ["log"]) or bounds[0] >= bounds[1] or (scale and bounds[0] <= 0):
        raise ExperimentError(f"{text!r}: needs LOW < HIGH, and LOW > 0 with :log")
    return name, lambda trial, key: trial.suggest_float(key, *bounds, log=bool(scale))
