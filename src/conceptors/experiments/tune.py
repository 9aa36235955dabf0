"""Choose settings on validation data, never on test data.

Trials go into an optuna study in the folder: a search can be stopped and resumed.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from conceptors._internal.checks import nearest
from conceptors.experiments.engines import find_device
from conceptors.experiments.events import Event, Progress, quiet
from conceptors.experiments.experiment import Experiment
from conceptors.experiments.methods import METHODS
from conceptors.experiments.results import overall
from conceptors.experiments.runner import Piece

FILE = "study.db"


def tune(
    experiment: Experiment,
    folder: Path,
    *,
    spaces: Sequence[str],
    trials: int,
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Search the settings of one method; return the best as `{"value": accuracy, "params": {...}}`.

    The score is the accuracy on the validation samples of all tasks after the last one, averaged
    over seeds; diverged seeds count as 0. Several processes may search in one folder. ValueError:
    the request is impossible, or the folder has a search with other settings.
    """
    if find_spec("optuna") is None:
        raise ImportError("tuning needs optuna: pip install 'conceptors[tune]'")
    if len(experiment.methods) != 1:
        raise ValueError(f"tune takes one method at a time, got {experiment.methods}")
    experiment.check()
    find_device(experiment.device)
    (method,) = experiment.methods
    types = get_type_hints(METHODS[method].settings_type)
    ranges = dict(parse_range(text, types) for text in spaces)
    study = _open(experiment, folder)
    while (ended := sum(trial.state.is_finished() for trial in study.trials)) < trials:
        trial = study.ask(ranges)
        settings = experiment.settings.get(method, {}) | trial.params
        tried = replace(experiment, settings={**experiment.settings, method: settings})
        score = statistics.mean(_score(Piece(tried, method, seed)) for seed in tried.seeds)
        study.tell(trial, score)
        chosen = ", ".join(f"{name}={value}" for name, value in trial.params.items())
        text = f"trial {ended + 1} of {trials}: {score:.2f} % on validation data, {chosen}"
        progress(Event(text))
    return {"value": study.best_value, "params": study.best_params}


def _score(piece: Piece) -> float:
    """Train one seed of a trial; return its accuracy on all tasks' validation samples."""
    learner = piece.learner(quiet)
    tasks = learner.scenario.tasks
    for number in range(len(tasks)):
        learner.learn(number)
        if learner.diverged:
            return 0.0
    return overall(learner.test(None, "validation"), [len(task.validation) for task in tasks])


def _open(experiment: Experiment, folder: Path) -> Any:
    """The study in a folder; ValueError if it is damaged, or of another experiment."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        study = optuna.create_study(
            study_name=f"{experiment.scenario}/{experiment.methods[0]}",
            storage=f"sqlite:///{folder / FILE}",
            sampler=optuna.samplers.TPESampler(),  # a seed would make processes repeat each other
            direction="maximize",
            load_if_exists=True,
        )
        earlier = study.user_attrs.get("request")
    except Exception as error:  # of many kinds, as optuna trusts the file
        reason = " ".join(f"{type(error).__name__}: {error!s:.200}".split())
        raise ValueError(
            f"{folder / FILE} is damaged ({reason}); move it away, or choose another --out"
        ) from error
    configs = [experiment.config(method) for method in experiment.methods]
    request = json.dumps([experiment.preset, experiment.options, configs, experiment.seeds])
    if earlier not in (None, request):
        raise ValueError(f"{folder} has a search with other settings; choose another --out")
    study.set_user_attr("request", request)
    return study


def parse_range(text: str, types: Mapping[str, type]) -> tuple[str, Any]:
    """`rate=0.01:1:log`, `aperture=1:30`, `labels=all,true` as a name and optuna's distribution."""
    from optuna import distributions

    name, _, values = text.partition("=")
    if not name or not values:
        raise ValueError(f"--vary takes NAME=LOW:HIGH[:log] or NAME=a,b,c, got {text!r}")
    if name not in types:
        raise ValueError(f"--vary {text}: no setting {name!r}{nearest(name, types)}")
    if ":" not in values:
        return name, distributions.CategoricalDistribution(values.split(","))
    low, high, *scale = values.split(":")
    kind, numbers = types[name], (distributions.IntDistribution, distributions.FloatDistribution)
    try:
        distribution = dict(zip((int, float), numbers))[kind]
        if scale not in ([], ["log"]) or kind(low) == kind(high):
            raise ValueError
        return name, distribution(kind(low), kind(high), log=scale == ["log"])
    except (KeyError, ValueError):
        raise ValueError(
            f"--vary {text}: {name} is of type {kind.__name__}; a range needs two numbers, "
            f"LOW < HIGH, and LOW > 0 with :log; choices are {name}=a,b,c"
        ) from None
