"""Jobs as one array of a Slurm cluster, through submitit.

What each job comes to is a file of its own in a folder that all machines see; whoever asked for the
work collects them. So nothing is lost when that process ends, and jobs that go on without it are
found again by the next.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conceptors._internal.files import write_atomically
from conceptors.experiments.engines.base import Finished, Job
from conceptors.experiments.engines.remote import ATTEMPTS, Resources, perform, replay
from conceptors.experiments.events import Progress
from conceptors.experiments.experiment import ExperimentError

_MINUTES = 24 * 60  # a job's time limit, unless `time` says otherwise


class Slurm:
    """An array of jobs that may be requeued.

    Args:
        folder: for outcomes and logs; on a file system that all machines share.
        resources: what each job may use.
        options: of sbatch, as `partition` and `time` (in minutes).
        per_job: jobs that one element of the array does in turn.
        cluster: submitit's name for it; "local" starts processes on this machine.
        poll: seconds between two looks.
    """

    def __init__(
        self,
        folder: Path,
        resources: Resources | None = None,
        *,
        options: Mapping[str, str] | None = None,
        per_job: int = 1,
        cluster: str = "slurm",
        poll: float = 5.0,
    ) -> None:
        if find_spec("submitit") is None:
            raise ImportError("--engine slurm needs submitit: pip install 'conceptors[submitit]'")
        self._folder = folder.absolute()
        self._resources = resources or Resources()
        if self._resources.gpus % 1:
            raise ExperimentError(
                f"Slurm gives whole GPUs, got --gpus-per-run {self._resources.gpus:g}"
            )
        self._options = dict(options or {})
        if not self._options.get("time", "1").isdigit():
            raise ExperimentError(
                f"--slurm time is a number of minutes, got {self._options['time']!r}"
            )
        self._per_job = per_job
        self._cluster = cluster
        self._poll = poll

    def device(self, name: str) -> str:
        return self._resources.device(name)

    def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Finished]:
        if not jobs:
            return
        array = _Array(
            self._executor(), self._job_class(), self._folder, self._resources, self._per_job
        )
        array.resume(jobs)
        pending = dict(enumerate(jobs))
        failures: Counter[int] = Counter()
        while True:
            again: list[int] = []
            for number, job in list(pending.items()):
                report = array.report(job)
                if report is None:
                    continue
                if failure := report.get("failure"):
                    failures[number] += 1
                    if failures[number] < ATTEMPTS:
                        again.append(number)
                        continue
                    del pending[number]
                    yield Finished(number, failure=failure)
                else:
                    del pending[number]
                    yield Finished(number, replay(report, progress))
            if again:
                array.submit([jobs[number] for number in again])
            if not pending:
                break
            time.sleep(self._poll)
        array.clear()

    def _executor(self) -> Any:
        import submitit

        try:
            executor = submitit.AutoExecutor(folder=self._folder / "logs", cluster=self._cluster)
        except RuntimeError:
            raise ExperimentError(
                "--engine slurm finds no Slurm here; give the command on a machine that has sbatch"
            ) from None
        known = submitit.SlurmExecutor._valid_parameters()
        given = {name: _value(text) for name, text in self._options.items()}
        own: dict[str, Any] = {f"slurm_{name}": given[name] for name in given if name in known}
        if rest := {name: given[name] for name in given if name not in known}:
            own["slurm_additional_parameters"] = rest
        executor.update_parameters(
            name="conceptors",
            timeout_min=_MINUTES,
            cpus_per_task=self._resources.cpus,
            gpus_per_node=int(self._resources.gpus) or None,
            **own,
        )
        return executor

    def _job_class(self) -> Any:
        import submitit

        return submitit.LocalJob if self._cluster == "local" else submitit.SlurmJob


class _Array:
    """What was submitted, by key, and the files that come back."""

    def __init__(
        self, executor: Any, job_class: Any, folder: Path, resources: Resources, per_job: int
    ) -> None:
        self._executor = executor
        self._job_class = job_class
        self._outcomes = folder / "outcomes"
        self._outcomes.mkdir(parents=True, exist_ok=True)
        self._list = folder / "submitted.json"  # key -> id of Slurm's job
        self._resources = resources
        self._per_job = per_job
        self._submitted: dict[str, str] = {}
        self._handles: dict[str, Any] = {}

    def resume(self, jobs: Sequence[Job]) -> None:
        """Find what an earlier process has submitted, and submit the rest."""
        try:
            self._submitted = json.loads(self._list.read_text("utf-8"))
        except FileNotFoundError:
            self._submitted = {}
        except ValueError:
            raise ExperimentError(
                f"{self._list} is damaged; cancel the jobs that still run, and remove it"
            ) from None
        new: list[Job] = []
        for job in jobs:
            report = _read(self._path(job))
            if report and "failure" in report:
                self._path(job).unlink()  # a new start is a new chance
                report = None
            if report is None and not self._goes_on(job):
                new.append(job)
        self.submit(new)

    def submit(self, jobs: Sequence[Job]) -> None:
        """One array for all of them."""
        if not jobs:
            return
        parts = [jobs[i : i + self._per_job] for i in range(0, len(jobs), self._per_job)]
        for job in jobs:
            self._path(job).unlink(missing_ok=True)
        with self._executor.batch():
            handles = [
                self._executor.submit(
                    Requeueable([(job, self._path(job)) for job in part], self._resources)
                )
                for part in parts
            ]
        for part, handle in zip(parts, handles):
            for job in part:
                self._handles[job.key] = handle
                self._submitted[job.key] = handle.job_id
        write_atomically(self._list, json.dumps(self._submitted, indent=1).encode())

    def report(self, job: Job) -> dict[str, Any] | None:
        """What a job came to, or why it failed; None as long as it is not over."""
        found = _read(self._path(job))
        handle = self._handles.get(job.key)
        if found is None and handle is not None and handle.done():
            found = _read(self._path(job))  # it may have come between the two looks
            if found is None:
                found = {"failure": _last_words(handle)}
        return found

    def clear(self) -> None:
        """Forget what has been collected; logs stay."""
        for file in self._outcomes.glob("*.json"):
            file.unlink(missing_ok=True)
        self._list.unlink(missing_ok=True)

    def _goes_on(self, job: Job) -> bool:
        """Whether a job that an earlier process submitted waits or runs."""
        if job.key not in self._submitted:
            return False
        handle = self._job_class(self._executor.folder, self._submitted[job.key])
        self._handles[job.key] = handle
        return not handle.done(force_check=True)

    def _path(self, job: Job) -> Path:
        return self._outcomes / f"{job.key}.json"


class Requeueable:
    """Jobs in turn, with files for their outcomes; requeued, it goes on where a file is missing."""

    def __init__(self, jobs: list[tuple[Job, Path]], resources: Resources) -> None:
        self.jobs = jobs
        self.resources = resources

    def __call__(self) -> None:
        for job, path in self.jobs:
            if not path.exists():
                report = perform(job, self.resources)
                write_atomically(path, json.dumps(report).encode())

    def checkpoint(self) -> Any:
        """What submitit puts back into the queue: the same, for outcomes are on disk."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return found


def _last_words(handle: Any) -> str:
    """What is known of a job that ended without an outcome: killed, out of memory or of time."""
    try:
        said = handle.stderr()
    except OSError:
        said = None
    words = "\n".join((said or "").splitlines()[-20:])
    return f"job {handle.job_id} ended as {handle.state} without an outcome\n{words}".rstrip()


def _value(text: str) -> str | int:
    return int(text) if text.isdigit() else text
