"""Methods x seeds on a scenario, written to results.json after every finished seed.

A run can be killed at any moment and started again with the same command: finished seeds are
kept, the rest is done, and the file ends up the same. That holds on every engine: other processes
and machines do the work, and only this one writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from conceptors.experiments.engines import Engine, Local
from conceptors.experiments.events import Event, Progress
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.ledger import open_ledger
from conceptors.experiments.results import Failure, Results

__all__ = ["Experiment", "ExperimentError", "UnfinishedError", "placed", "run"]

Log = Callable[[str, int, int, list[float]], None]  # method, seed, task from 0, accuracies


class UnfinishedError(RuntimeError):
    """Some of the work failed; all the rest is done and written.

    `failures` has the last traceback of each by name, `diverged` the seeds whose training came to
    no numbers, and `results` what there is.
    """

    def __init__(
        self, failures: dict[str, str], results: Results, diverged: Sequence[Failure] = ()
    ) -> None:
        told = [f"{name} failed:\n{why}" for name, why in failures.items()]
        super().__init__("\n".join([*told, *map(str, diverged)]))
        self.failures = failures
        self.results = results
        self.diverged = list(diverged)


def run(
    experiment: Experiment,
    folder: Path,
    *,
    progress: Progress,
    log: Log | None = None,
    engine: Engine | None = None,
    retry: bool = False,
) -> Results:
    """Run what is not done yet; the whole results.

    Args:
        engine: where; by default in this process.
        retry: also seeds that failed before with these settings.

    Raises:
        ExperimentError: impossible request, another run in the folder, other settings in it, or a
            damaged results file. Nothing is overwritten.
        UnfinishedError: something failed on another machine, or seeds diverged, now or earlier;
            what did not is written.
    """
    engine = engine or Local()
    experiment = placed(experiment, engine)
    with open_ledger(folder) as ledger:
        ledger.join(experiment)
        pieces = ledger.left(experiment, retry=retry)
        over = 0

        def told(event: Event) -> None:
            progress(counted(event, over, len(pieces)))
            if log is not None and event.kind == "task":
                for seed, row in zip(event.seeds, event.rows):
                    log(event.method, seed, event.task - 1, row)

        failures: dict[str, str] = {}
        for finished in engine.work(pieces, told):
            over += 1
            if finished.failure:
                failures[str(pieces[finished.number])] = finished.failure
            else:
                ledger.take(finished.value)
        results = ledger.results
        if results.runs or results.failed:  # a file without any would be none
            ledger.write()
        diverged = ledger.failed(experiment)
    if failures or diverged:
        raise UnfinishedError(failures, results, diverged)
    return results


def placed(experiment: Experiment, engine: Engine) -> Experiment:
    """An experiment on the device that an engine gives it; ExperimentError if it cannot be run."""
    experiment.check_request()
    try:
        return replace(experiment, device=engine.device(experiment.device))
    except ValueError as error:
        raise ExperimentError(str(error)) from error


def counted(event: Event, before: int, pieces: int) -> Event:
    """An event that also says how much of the whole command is done."""
    part = event.step / event.steps if event.kind == "step" else 1.0
    done = before * event.tasks + event.task - 1 + part
    return replace(event, done=done, planned=pieces * event.tasks)
