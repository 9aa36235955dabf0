"""Choosing settings on validation data: never on test data.

Trials go into an optuna study in the folder, so that a search can be stopped and resumed, and
several processes can work on it at once.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from conceptors._internal.files import alive, is_alive
from conceptors._internal.suggest import nearest
from conceptors.experiments.engines import Engine, Local
from conceptors.experiments.events import Progress
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.methods import METHODS
from conceptors.experiments.runner import placed
from conceptors.experiments.trials import Trial, TrialsError


def tune(
    experiment: Experiment,
    folder: Path,
    *,
    spaces: list[str],
    trials: int,
    minutes: float | None,
    progress: Progress,
    engine: Engine | None = None,
    at_once: int = 1,
) -> dict[str, Any]:
    """The best settings of one method: `{"value": accuracy, "params": {...}}`.

    The score is the accuracy on the validation samples of all tasks after the last one, mean over
    seeds. Trials are given to the engine `at_once` at a time; what is asked next depends on them.

    Raises:
        ExperimentError: impossible request, or the folder holds a search with other settings.
        TrialsError: trials that failed on other machines; the rest is done and written.
    """
    try:
        import optuna
    except ImportError:
        raise ImportError(
            "tuning needs optuna: pip install 'conceptors[tune]'; --grid does without it"
        ) from None
    if len(experiment.methods) != 1:
        raise ExperimentError(f"tune takes one method at a time, got {experiment.methods}")
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise ExperimentError(f"--minutes must be a finite number above 0, got {minutes:g}")
    engine = engine or Local()
    experiment = placed(experiment, engine)
    (method,) = experiment.methods
    types = get_type_hints(METHODS[method].settings_type)
    ranges = [parse_range(text, types) for text in spaces]
    until = time.monotonic() + 60 * minutes if minutes else None
    study = _open(experiment, folder, at_once)
    failures: dict[str, str] = {}
    with alive(folder / "worker") as worker:
        while (left := trials - _done(study)) > 0 and (until is None or time.monotonic() < until):
            asked = [_ask(study, experiment, ranges, worker) for _ in range(min(left, at_once))]
            failures |= _try(study, asked, engine, progress, trials)
    done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    best = {"value": study.best_value, "params": study.best_params} if done else None
    if failures:
        raise TrialsError(failures, best)
    if best is None:
        raise ExperimentError(f"no trial in {folder} has come to an end; give it more --minutes")
    return best


Ranges = list[tuple[str, Callable[[Any, str], Any]]]


def _open(experiment: Experiment, folder: Path, at_once: int) -> Any:
    """The study in a folder; ExperimentError if it is damaged, or of another experiment."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / "study.log"
    check_journal(journal)
    try:
        study = optuna.create_study(
            study_name=f"{experiment.scenario}/{experiment.methods[0]}",
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(journal))),
            # a seed would make processes repeat each other; trials at once keep their distance
            sampler=optuna.samplers.TPESampler(constant_liar=at_once > 1),
            direction="maximize",
            load_if_exists=True,
        )
        fail_dead(study, journal)
    except OSError:
        raise
    except Exception as error:  # optuna replays the journal, and trusts it
        raise _damaged(journal, f"{type(error).__name__}: {error!s:.200}") from error
    asked = json.dumps({**experiment.identity(), "seeds": experiment.seeds}, sort_keys=True)
    if study.user_attrs.get("asked", asked) != asked:
        raise ExperimentError(f"{folder} holds a search with other settings; choose another --out")
    study.set_user_attr("asked", asked)
    return study


def _ask(study: Any, experiment: Experiment, ranges: Ranges, worker: str) -> tuple[Any, Trial]:
    """optuna's trial, and the same as a job."""
    from optuna.exceptions import UpdateFinishedTrialError

    trial = None
    while trial is None:
        trial = study.ask()
        try:
            trial.set_user_attr("worker", worker)
        except UpdateFinishedTrialError:  # another process, just started, took it for a dead one's
            trial = None
    chosen = {name: suggest(trial, name) for name, suggest in ranges}
    return trial, Trial(experiment, chosen, experiment.seeds)


def _try(
    study: Any,
    asked: list[tuple[Any, Trial]],
    engine: Engine,
    progress: Progress,
    trials: int,
) -> dict[str, str]:
    """Do some trials side by side, and tell optuna; what failed."""
    from optuna.trial import TrialState

    failures: dict[str, str] = {}
    waiting = dict(enumerate(asked))
    try:
        for finished in engine.work([job for _, job in asked], progress):
            trial, job = waiting.pop(finished.number)
            if finished.failure:
                failures[str(job)] = finished.failure
                study.tell(trial, state=TrialState.FAIL)
                continue
            score = statistics.mean(finished.value)
            study.tell(trial, score)
            progress(job.done(trial.number + 1, trials, score))
    except (Exception, KeyboardInterrupt):
        for trial, _ in waiting.values():
            study.tell(trial, state=TrialState.FAIL)
        raise
    return failures


def check_journal(path: Path) -> None:
    """ExperimentError for a journal that is not one line of JSON after the other.

    What a killed process has left half-written counts too: the next entry would go onto that line.
    """
    if not path.exists():
        return
    for _ in range(5):
        content = path.read_bytes()
        if not content or content.endswith(b"\n"):
            break
        time.sleep(0.2)  # another process may be writing this very line
    else:
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


def fail_dead(study: Any, journal: Path) -> None:
    """Trials whose process is gone are told so; they do not count, and nobody waits for them."""
    import optuna

    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        worker = trial.user_attrs.get("worker")
        if isinstance(worker, str) and is_alive(journal.with_name(Path(worker).name)):
            continue
        optuna.trial.Trial(study, trial._trial_id).set_user_attr("died", True)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def _done(study: Any) -> int:
    """Trials that came to an end of their own."""
    return sum(t.state.is_finished() and not t.user_attrs.get("died") for t in study.trials)


def parse_range(text: str, types: Mapping[str, type]) -> tuple[str, Callable[[Any, str], Any]]:
    """`rate=0.01:1:log`, `aperture=1:30`, `labels=all,true` as a way to ask optuna for a value.

    `types` are the types of the settings that there are.

    Raises:
        ExperimentError: not of that form, or no such setting.
    """
    name, sign, rest = text.partition("=")
    if not sign or not name or not rest:
        raise ExperimentError(f"--vary takes NAME=LOW:HIGH[:log] or NAME=a,b,c, got {text!r}")
    if name not in types:
        raise ExperimentError(f"--vary {text}: no setting {name!r}{nearest(name, types)}")
    if ":" not in rest:
        choices = rest.split(",")
        return name, lambda trial, key: trial.suggest_categorical(key, choices)
    low, high, *scale = rest.split(":")
    try:
        bounds = types[name](low), types[name](high)
    except ValueError:
        raise ExperimentError(
            f"{text!r}: {low!r} and {high!r} must be {types[name].__name__}s"
        ) from None
    if scale not in ([], ["log"]) or bounds[0] >= bounds[1] or (scale and bounds[0] <= 0):
        raise ExperimentError(f"{text!r}: needs LOW < HIGH, and LOW > 0 with :log")
    if types[name] not in (int, float):
        raise ExperimentError(f"{text!r}: {name} is no number; give choices as {name}=a,b,c")
    ask = "suggest_int" if types[name] is int else "suggest_float"
    return name, lambda trial, key: getattr(trial, ask)(key, *bounds, log=bool(scale))
