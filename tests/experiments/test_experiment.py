"""Experiments: what is written, that it is the same every time, and that nothing gets lost."""

from __future__ import annotations

import errno
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conceptors.experiments.events import Event
from conceptors.experiments.results import measures, read_results, summarise
from conceptors.experiments.runner import ExperimentError, UnfinishedError, run
from experiments.runs import FAST, TWO, quietly, read, timeless

pytestmark = pytest.mark.usefixtures("fake")
ONE = replace(TWO, methods=["sgd"], seeds=[0], settings={"*": {**FAST, "steps": 2}})


# --- what is written ---------------------------------------------------------------------


def test_the_results_have_all_parts(tmp_path: Path) -> None:
    settings = {"*": FAST, "cab": {"aperture": 4.0, "steps": 5}}
    asked = replace(TWO, methods=["sgd", "cab"], settings=settings, command="conceptors run ...")
    events: list[Event] = []
    results = quietly(asked, tmp_path / "new" / "folder", progress=events.append)
    assert read_results(tmp_path / "new" / "folder" / "results.json") == results
    assert {name: results[name] for name in ("schema", "scenario", "command")} == {
        "schema": 1,
        "scenario": "disjoint-mnist",
        "command": "conceptors run ...",
    }
    assert results["task_names"] == ["digits 0, 1, 2, 3, 4", "digits 5, 6, 7, 8, 9"]
    pairs = [(row["method"], row["seed"]) for row in results["runs"]]
    assert pairs == [("sgd", 0), ("sgd", 1), ("cab", 0), ("cab", 1)]
    for row in results["runs"]:
        assert [len(part) for part in row["accuracy"]] == [2, 2]
        assert row["machine"] == results["environment"]["device_name"]
        assert row["config"]["steps"] == (5 if row["method"] == "cab" else 20)
        assert [len(h["loss"]) for h in row["history"]] == [len(row["history"][0]["step"])] * 2
        assert measures(row["accuracy"], [50, 50]).items() <= row.items()
    assert set(results["runs"][2]) >= {"quota", "spectra"}
    assert set(results["summary"]["sgd"]) >= {"mean", "std", "n", "forgetting"}
    assert results["summary"]["sgd"]["forgetting"] > 10
    tasks = [event for event in events if event.kind == "task"]
    assert [(e.method, e.seed, e.task) for e in tasks[-2:]] == [("cab", 1, 1), ("cab", 1, 2)]
    assert tasks[-1].accuracy_so_far == pytest.approx(results["runs"][3]["final_accuracy"])
    assert (tasks[3].share, tasks[-1].share) == (0.5, 1.0)


def test_time_left_counts_tasks_that_end_early(tmp_path: Path) -> None:
    early = {**FAST, "steps": 400, "stop_above": 1.0}  # each task ends at its first check
    events: list[Event] = []
    run(replace(ONE, settings={"*": early}), tmp_path, progress=events.append)
    assert [(e.kind, e.share) for e in events] == [
        *(("step", 10 / 400 / 2), ("task", 0.5)),
        *(("step", 1.0), ("task", 1.0)),  # the second task is expected to be as short
    ]


def test_a_preset_brings_reference_and_deviations(tmp_path: Path) -> None:
    asked = replace(ONE, preset="paper", settings={"*": {"hidden": "6", "steps": 4}})
    results = quietly(asked, tmp_path)
    assert results["reference"]["cab"]["mean"] == 94.91
    assert results["deviations"]
    assert results["runs"][0]["config"]["gradient"] == "unit"


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    first = quietly(TWO, tmp_path / "a")
    torch.rand(7)  # whatever happened before
    assert timeless(first) == timeless(quietly(TWO, tmp_path / "b"))
    swapped = quietly(replace(TWO, seeds=[1, 0], methods=["ewc", "sgd"]), tmp_path / "c")
    assert {str(r) for r in timeless(swapped)["runs"]} == {str(r) for r in timeless(first)["runs"]}


def test_of_many_tasks_future_ones_are_not_tested(tmp_path: Path) -> None:
    asked = replace(ONE, scenario="permuted-mnist", options={"tasks": 21})
    (row,) = quietly(asked, tmp_path)["runs"]
    assert [len(part) for part in row["accuracy"]] == list(range(1, 22))


def test_measures_and_summary_by_hand() -> None:
    accuracy = [[90.0, 99.0, 0.0], [95.0, 80.0, 5.0], [60.0, 84.0, 70.0]]
    assert measures(accuracy, [100, 200, 100]) == {
        "final_accuracy": (60 + 2 * 84 + 70) / 4,
        "forgetting": (35 + 0) / 2,  # 95 -> 60, 84 -> 84
        "backward_transfer": (-30 + 4) / 2,
    }
    rows = [("b", 1.0, 3.0, 2.0), ("a", 5.0, None, 1.0), ("b", 4.0, 5.0, 4.0)]
    names = ("method", "final_accuracy", "forgetting", "seconds")
    summary = summarise([dict(zip(names, row)) for row in rows])
    assert summary["b"] == {
        "mean": 2.5,
        "std": 2.1213,
        "n": 2,  # of a sample: n - 1
        "forgetting": 4.0,
        "backward_transfer": None,
        "seconds": 3.0,
    }
    assert (summary["a"]["std"], summary["a"]["forgetting"]) == (0.0, None)


# --- refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scenario": "disjoint-mnits"}, "did you mean 'disjoint-mnist'"),
        ({"methods": ["swd"]}, "unknown method 'swd'; did you mean 'sgd'"),
        ({"methods": []}, "no method given"),
        ({"seeds": []}, "seeds must be different"),
        ({"seeds": [1, 1]}, "seeds must be different"),
        ({"preset": "bst"}, "did you mean 'best'"),
        ({"scenario": "rotated-mnist", "preset": "paper"}, "has no settings for scenario"),
        ({"settings": {"sgd": {"rat": 1}}}, "did you mean 'rate'"),
        ({"settings": {"*": {"rat": 1}}}, "did you mean 'rate'"),
        ({"settings": {"joitn": {"rate": 1}}}, "unknown method 'joitn'; did you mean 'joint'"),
        ({"settings": {"*": {"rate": "x"}}}, "rate='x' is not a float"),
        ({"settings": {"*": {"stop_above_later": 90}}}, "because stop_above is 0.0"),
        ({"device": "abacus"}, "this machine has: cpu"),
    ],
)
def test_an_impossible_request_changes_nothing(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExperimentError, match=message):
        run(replace(TWO, **change), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"*": {**FAST, "steps": 2, "rate": 0.5}}}, r"sgd\.rate: 0\.1 there, 0\.5"),
        ({"options": {"tasks": 5}}, r"options: {} there, {'tasks': 5} now"),
        ({"scenario": "permuted-mnist"}, "scenario: 'disjoint-mnist' there"),
        ({"preset": "best"}, "preset: None there, 'best' now"),
    ],
)
def test_other_settings_in_the_folder_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    before = quietly(ONE, tmp_path)
    with pytest.raises(ExperimentError, match=message):
        run(replace(ONE, **change), tmp_path)
    assert read(tmp_path) == before


def test_results_without_settings_cannot_be_resumed(tmp_path: Path) -> None:
    results = quietly(ONE, tmp_path)
    del results["identity"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ExperimentError, match="does not say with which settings it was made"):
        run(ONE, tmp_path)


def test_a_second_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    def second(event: Event) -> None:
        with pytest.raises(ExperimentError, match="another run is writing"):
            run(TWO, tmp_path)

    run(ONE, tmp_path, progress=second)
    run(ONE, tmp_path)  # the lock is gone with the run


# --- resumed -----------------------------------------------------------------------------

PROGRAM = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import conceptors.experiments.scenarios.images as images
from conceptors.experiments.runner import run
from experiments.tasks import blobs
from experiments.test_experiment import KILLED
images.load = blobs
print("ready", flush=True)
run(KILLED, Path(sys.argv[2]), progress=lambda event: print(event, flush=True))
"""
SLOW = {"*": {**FAST, "steps": 60, "check_every": 2}, "ewc": {"strength": 1.0}}
KILLED = replace(TWO, seeds=[0, 1, 2], settings=SLOW)


def test_a_killed_run_resumes_to_the_same_results(tmp_path: Path) -> None:
    """kill -9 at random moments; then the same command until it is done."""
    chance = random.Random(0)
    words = [str(Path(__file__).parents[1]), str(tmp_path / "killed")]
    for _ in range(2):
        command = [sys.executable, "-c", PROGRAM, *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(chance.randint(2, 150)):  # somewhere within the first seeds
                process.stdout.readline()
            time.sleep(chance.random() * 0.01)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    resumed = quietly(KILLED, tmp_path / "killed")
    assert timeless(resumed) == timeless(quietly(KILLED, tmp_path / "uninterrupted"))
    assert len(resumed["runs"]) == 6


def test_seeds_and_methods_can_be_added(tmp_path: Path) -> None:
    run(replace(TWO, methods=["sgd"], seeds=[1]), tmp_path)
    run(replace(TWO, methods=["ewc"], seeds=[0]), tmp_path)
    events: list[Event] = []
    results = quietly(TWO, tmp_path, progress=events.append)
    assert {(event.method, event.seed) for event in events} == {("sgd", 0), ("ewc", 1)}
    whole = timeless(quietly(TWO, tmp_path / "other"))
    assert {str(r) for r in timeless(results)["runs"]} == {str(r) for r in whole["runs"]}
    assert [run["method"] for run in results["runs"]] == ["sgd", "sgd", "ewc", "ewc"]


def test_a_full_disk_leaves_the_old_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = quietly(ONE, tmp_path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        run(replace(ONE, seeds=[0, 1]), tmp_path)
    assert read(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "results.json"]


# --- diverged ----------------------------------------------------------------------------


def test_seeds_that_diverge_do_not_stop_the_others(tmp_path: Path) -> None:
    hot = replace(TWO, methods=["cab", "sgd"], settings={"*": FAST, "cab": {"rate": 1e30}})
    for _ in range(2):  # started again, it reports them and does not run them
        with pytest.raises(UnfinishedError, match="cab seed 0 diverged in task 1 of 2") as error:
            run(hot, tmp_path)
        assert len(error.value.diverged) == 2
    results = read(tmp_path)
    assert [(row["method"], row["seed"]) for row in results["runs"]] == [("sgd", 0), ("sgd", 1)]
    assert [failure["seed"] for failure in results["failed"]] == [0, 1]
    cool = replace(hot, settings={"*": FAST})  # other settings of a method without a run
    assert len(quietly(cool, tmp_path)["runs"]) == 4
    assert "failed" not in read(tmp_path)


def test_where_all_seeds_diverged_other_settings_may_follow(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError):
        run(replace(ONE, settings={"*": {**FAST, "rate": 1e30}}), tmp_path)
    with pytest.raises(ValueError, match="runs is empty: sgd seed 0 diverged in task 1 of 2"):
        read_results(tmp_path / "results.json")
    assert len(quietly(ONE, tmp_path)["runs"]) == 1
