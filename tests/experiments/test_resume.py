"""Experiments that were stopped, damaged or continued: nothing gets lost."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conceptors.experiments.events import Event
from conceptors.experiments.results import Results
from conceptors.experiments.runner import ExperimentError, run
from experiments.runs import FAST, TWO, quietly, read, timeless

COMMITTED = Path(__file__).parents[2] / "results"
pytestmark = pytest.mark.usefixtures("fake")


PROGRAM = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import conceptors.experiments.scenarios.images as images
from conceptors.experiments.runner import Experiment, run
from experiments.tasks import blobs
from experiments.test_resume import KILLED
images.load = blobs
print("ready", flush=True)
run(KILLED, Path(sys.argv[2]), progress=lambda event: print(event, flush=True))
"""
SLOW = {"*": {**FAST, "steps": 60, "check_every": 2}, "ewc": {"strength": 1.0}}  # 15 diverges
KILLED = replace(TWO, seeds=[0, 1, 2], settings=SLOW)


def test_a_killed_run_resumes_to_the_same_results(tmp_path: Path) -> None:
    """kill -9 at random moments; then the same command until it is done."""
    chance = random.Random(0)
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(Path(__file__).parents[1]),
        str(tmp_path / "killed"),
    ]
    kills = 0
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(chance.randint(2, 150)):  # somewhere within the first seeds
                process.stdout.readline()
            time.sleep(chance.random() * 0.01)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += process.returncode == -signal.SIGKILL
    assert kills
    path = tmp_path / "killed" / "results.json"
    if path.exists():
        json.loads(path.read_text())  # whole at any time
    resumed = quietly(KILLED, tmp_path / "killed")
    assert timeless(resumed) == timeless(quietly(KILLED, tmp_path / "uninterrupted"))
    assert len(resumed["runs"]) == 6


def test_finished_seeds_are_not_run_again(tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(event: Event) -> None:
        if (event.method, event.seeds) == ("ewc", (1,)):
            raise StoppedError

    with pytest.raises(StoppedError):
        run(TWO, tmp_path, progress=stop)
    assert [(r["method"], r["seed"]) for r in read(tmp_path)["runs"]] == [
        *(("sgd", 0), ("sgd", 1), ("ewc", 0))
    ]
    said: list[Event] = []
    results = run(TWO, tmp_path, progress=said.append).to_json()
    assert {(event.method, event.seeds) for event in said} == {("ewc", (1,))}
    assert said[-1].share == 1.0
    assert timeless(results) == timeless(quietly(TWO, tmp_path / "other"))
    said.clear()
    again = run(TWO, tmp_path, progress=said.append).to_json()
    assert not said
    assert timeless(again) == timeless(results)


def test_seeds_and_methods_can_be_added(tmp_path: Path) -> None:
    quietly(replace(TWO, methods=["sgd"], seeds=[1]), tmp_path)
    quietly(replace(TWO, methods=["ewc"], seeds=[0]), tmp_path)
    results = quietly(TWO, tmp_path)
    assert timeless(results) == timeless(quietly(TWO, tmp_path / "other"))


def test_a_second_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    def second(event: Event) -> None:
        with pytest.raises(ExperimentError, match="another run is writing"):
            quietly(TWO, tmp_path)

    run(replace(TWO, methods=["sgd"], seeds=[0]), tmp_path, progress=second)
    quietly(replace(TWO, methods=["sgd"], seeds=[0]), tmp_path)  # the lock is gone with the run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"*": {**FAST, "rate": 0.5}}}, r"sgd\.rate: 0\.1 there, 0\.5 now"),
        ({"options": {"tasks": 5}}, r"options: {} there, {'tasks': 5} now"),
        ({"scenario": "permuted-mnist"}, "scenario: 'disjoint-mnist' there"),
        ({"preset": "best"}, "preset: None there, 'best' now"),
    ],
)
def test_a_changed_configuration_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    one = replace(TWO, methods=["sgd"], seeds=[0], settings={"*": {**FAST, "steps": 2}})
    quietly(one, tmp_path)
    before = (tmp_path / "results.json").read_bytes()
    with pytest.raises(ExperimentError, match=message):
        quietly(replace(one, **change), tmp_path)
    assert (tmp_path / "results.json").read_bytes() == before


def test_a_record_that_is_older_than_a_setting_is_not_one_of_its_default(tmp_path: Path) -> None:
    """Runs of `shield` without a word on room left none."""
    one = replace(TWO, methods=["shield"], seeds=[0], settings={"*": {**FAST, "steps": 2}})
    quietly(one, tmp_path)
    path = tmp_path / "results.json"
    found = json.loads(path.read_text())
    for config in (found["runs"][0]["config"], found["identity"]["configs"]["shield"]):
        del config["room"]
    path.write_text(json.dumps(found))
    with pytest.raises(ExperimentError, match=r"shield\.room: 0\.0 there, 0\.2 now"):
        quietly(one, tmp_path)
    quietly(replace(one, settings={"*": {**FAST, "steps": 2}, "shield": {"room": 0.0}}), tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"\xff\xfe", b'"text"', b'{"schema": 2}', b'{"schema": 1}'),
        b'{"schema": 1, "identity": [], "runs": []}',
        b'{"schema": 1, "identity": {"configs": {}}, "runs": null}',
    ],
)
def test_a_damaged_file_is_left_untouched(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(ExperimentError, match=r"is not .*move it away, or choose another --out"):
        quietly(TWO, tmp_path)
    assert (tmp_path / "results.json").read_bytes() == content


@pytest.mark.parametrize("damage", ["method", "measure"])
def test_runs_that_do_not_belong_are_refused(damage: str, tmp_path: Path) -> None:
    one = replace(TWO, methods=["sgd"], seeds=[0], settings={"*": {**FAST, "steps": 2}})
    results = quietly(one, tmp_path)
    if damage == "method":
        results["runs"][0]["method"] = "other"
    else:
        del results["runs"][0]["final_accuracy"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ExperimentError, match=r"is not a results file .*move it away"):
        quietly(one, tmp_path)


def test_results_without_settings_cannot_be_resumed(tmp_path: Path) -> None:
    one = replace(TWO, methods=["sgd"], seeds=[0], settings={"*": {**FAST, "steps": 2}})
    results = quietly(one, tmp_path)
    del results["identity"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ExperimentError, match="does not say with which settings it was made"):
        quietly(one, tmp_path)


def test_a_newer_file_is_left_to_a_newer_version(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"schema": 2}')
    with pytest.raises(ValueError, match="schema is 2; this version reads schema 1: a newer"):
        Results.read(tmp_path / "results.json")


OTHERS = {"avalanche", "pretrained"}  # scripts of experiments/ that have a form of their own
WRITTEN = [path for path in COMMITTED.glob("*/results.json") if path.parent.name not in OTHERS]


@pytest.mark.parametrize("path", sorted(WRITTEN), ids=lambda path: path.parent.name)
def test_committed_results_are_read_and_written_as_they_are(path: Path, tmp_path: Path) -> None:
    Results.read(path).write(tmp_path / "results.json")
    assert read(tmp_path) == read(path.parent)


def test_the_old_name_of_a_preset_is_resumed(tmp_path: Path) -> None:
    small = {"*": {"hidden": "6", "steps": 4}}
    one = replace(TWO, methods=["sgd"], seeds=[0], preset="report", settings=small)
    results = quietly(one, tmp_path)
    results["identity"]["preset"] = results["preset"] = "report"  # as earlier versions wrote it
    (tmp_path / "results.json").write_text(json.dumps(results))
    said: list[Event] = []
    again = run(replace(one, preset="paper"), tmp_path, progress=said.append)
    assert not said
    assert again.preset == "paper"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ExperimentError, match="cannot make the folder"):
            quietly(TWO, folder)
    assert (tmp_path / "file").read_text() == "not a folder"
    (tmp_path / "closed").mkdir(mode=0o555)
    if not os.access(tmp_path / "closed", os.W_OK):  # root may write anywhere
        with pytest.raises(ExperimentError, match="cannot write into"):
            quietly(TWO, tmp_path / "closed")


def test_a_full_disk_leaves_the_old_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(TWO, methods=["sgd"], seeds=[0])
    quietly(one, tmp_path)
    before = (tmp_path / "results.json").read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ExperimentError, match="No space left on device; the last good one"):
        quietly(TWO, tmp_path)
    assert (tmp_path / "results.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "results.json"]
