"""Experiments through submitit, whose local executor stands for a Slurm cluster."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from conceptors.experiments.engines import Resources, Slurm
from conceptors.experiments.events import Event, quiet
from conceptors.experiments.experiment import ExperimentError
from conceptors.experiments.runner import UnfinishedError, run
from experiments.engines.work import Own, until, wanted
from experiments.runs import quietly, read, timeless

pytest.importorskip("submitit")
# a job that goes on without its driver is what is wanted
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


def engine(folder: Path, own: Own, per_job: int = 1) -> Slurm:
    resources = Resources(imports=(str(own.file),))
    return Slurm(folder / "slurm", resources, per_job=per_job, cluster="local", poll=0.05)


class StoppedError(Exception):
    """The end of a driver."""


def stop(event: Event) -> None:
    raise StoppedError


def test_a_requeued_job_resumes(tmp_path: Path, own: Own) -> None:
    """Two jobs of two seeds each; one is told to go in the midst of its second seed."""
    free = own.hold(1)

    def preempt() -> None:
        until(lambda: 1 in own.counts("begin"))
        os.kill(own.process("begin-1"), signal.SIGUSR2)  # as Slurm does before it takes a machine
        until(lambda: own.counts("begin")[1] == 2)
        free.unlink()

    asked = wanted(["noting"], [0, 1, 2, 3])
    preempting = threading.Thread(target=preempt)
    preempting.start()
    found = run(asked, tmp_path, progress=quiet, engine=engine(tmp_path, own, 2)).to_json()
    preempting.join()
    assert own.counts("begin") == {0: 1, 1: 2, 2: 1, 3: 1}  # seed 0 was done, and kept
    assert own.counts("end") == {0: 1, 1: 1, 2: 1, 3: 1}
    assert timeless(found) == timeless(quietly(asked, tmp_path / "here"))
    assert not list((tmp_path / "slurm" / "outcomes").iterdir())  # all were collected


def test_jobs_go_on_without_the_driver(tmp_path: Path, own: Own) -> None:
    """What was finished meanwhile is collected by the next one, and not done again."""
    asked = wanted(["noting"], [0, 1])
    with pytest.raises(StoppedError):
        run(asked, tmp_path, progress=stop, engine=engine(tmp_path, own))
    outcomes = tmp_path / "slurm" / "outcomes"
    until(lambda: len(list(outcomes.glob("*.json"))) == 2)
    said: list[Event] = []
    results = run(asked, tmp_path, progress=said.append, engine=engine(tmp_path, own))
    assert own.counts("begin") == {0: 1, 1: 1}
    assert [run.seed for run in results.runs] == [0, 1]
    assert {event.seeds for event in said} == {(0,), (1,)}


def test_failures_and_lost_jobs(tmp_path: Path, own: Own) -> None:
    """What fails is tried three times; a job that is killed outright is done again."""
    free = own.hold(1)

    def kill() -> None:
        until(lambda: own.counts("begin"))
        os.kill(own.process("begin-1"), signal.SIGKILL)
        until(lambda: own.counts("begin") == {1: 2})
        free.unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    asked = wanted(["failing", "noting"], [1])
    with pytest.raises(UnfinishedError, match="seed 1 is no good") as caught:
        run(asked, tmp_path, progress=quiet, engine=engine(tmp_path, own))
    killer.join()
    assert list(caught.value.failures) == ["disjoint-mnist, failing seed 1"]
    assert "Traceback" in caught.value.failures["disjoint-mnist, failing seed 1"]
    assert own.counts("failed") == {1: 3}
    assert own.counts("end") == {1: 1}
    assert [(r["method"], r["seed"]) for r in read(tmp_path)["runs"]] == [("noting", 1)]


# Slurm's commands, as far as submitit uses them: jobs of an array start at once, on this machine.
SBATCH = """#!/bin/sh
cat "$1" >> "$(dirname "$0")/submitted.sh"
for i in 0 1; do
    SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$i SLURM_JOB_ID=7$i SLURM_PROCID=0 SLURM_LOCALID=0 \\
    SLURM_NODEID=0 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 sh "$1" >/dev/null 2>&1 &
done
echo "Submitted batch job 7"
"""
SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do
    case "$1" in --output|--error) shift 2 ;; *) shift ;; esac
done
exec "$@"
"""
SACCT = """#!/bin/sh
printf 'JobID|State|NodeList\\n7_0|RUNNING|here\\n7_1|RUNNING|here\\n'
"""


def test_one_array_with_what_sbatch_is_told(
    tmp_path: Path, own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    on_slurm = Slurm(
        tmp_path / "slurm",
        Resources(cpus=2, imports=(str(own.file),)),
        options={"partition": "fast", "time": "90", "nice": "5"},
        poll=0.05,
    )
    asked = wanted(["noting"], [0, 1])
    free = own.hold(1)
    with pytest.raises(StoppedError):
        run(asked, tmp_path, progress=stop, engine=on_slurm)
    until(lambda: own.counts("begin") == {0: 1, 1: 1})
    free.unlink()  # it runs as long as nobody waits for it; the next one finds it
    found = run(asked, tmp_path, progress=quiet, engine=on_slurm)
    assert [run.seed for run in found.runs] == [0, 1]
    assert own.counts("begin") == own.counts("end") == {0: 1, 1: 1}
    script = (commands / "submitted.sh").read_text()
    assert script.count("#SBATCH --array") == 1
    for line in ("array=0-1", "partition=fast", "time=90", "nice=5", "cpus-per-task=2"):
        assert f"#SBATCH --{line}" in script
    assert "gpus" not in script


def test_requests_that_slurm_cannot_meet(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"whole GPUs, got --gpus-per-run 0\.5"):
        Slurm(tmp_path, Resources(gpus=0.5))
    with pytest.raises(ExperimentError, match="number of minutes, got '04:00:00'"):
        Slurm(tmp_path, options={"time": "04:00:00"})


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ExperimentError, match="finds no Slurm here"):
        run(wanted(["sgd"], [0]), tmp_path, progress=quiet, engine=Slurm(tmp_path / "slurm"))


def test_a_damaged_list_of_jobs_is_told(tmp_path: Path, own: Own) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "submitted.json").write_text(json.dumps({"key": "1"})[:-3])
    with pytest.raises(ExperimentError, match=r"submitted\.json is damaged"):
        run(wanted(["sgd"], [0]), tmp_path, progress=quiet, engine=engine(tmp_path, own))
