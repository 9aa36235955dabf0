"""Experiments: what is written, that it is the same every time, and that nothing gets lost."""

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
import torch

from conceptors.experiments.events import Event, quiet
from conceptors.experiments.results import Results, Run, measures, summarise
from conceptors.experiments.runner import Experiment, ExperimentError, run
from conceptors.report import read_results
from experiments.tasks import blobs

FAST: dict[str, Any] = {"hidden": "8", "steps": 20, "batch": 16, "check_every": 10}
COMMITTED = Path(__file__).parents[2] / "results"
TWO = Experiment("disjoint-mnist", ["sgd", "ewc"], [0, 1], settings={"*": FAST})


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conceptors.experiments.scenarios.images.load", blobs)


def quietly(experiment: Experiment, folder: Path) -> dict[str, Any]:
    return run(experiment, folder, progress=quiet).to_json()


def timeless(results: dict[str, Any]) -> dict[str, Any]:
    """Results without what may differ between two equal runs."""
    left: dict[str, Any] = json.loads(json.dumps(results))
    del left["environment"]
    for row in [*left["runs"], *left["summary"].values()]:
        row.pop("seconds")
    return left


def held(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


# --- what is written ---------------------------------------------------------------------


def test_the_results_have_all_parts(tmp_path: Path) -> None:
    methods = ["sgd", "cab"]
    own = {"*": FAST, "cab": {"aperture": 4.0, "steps": 5}}
    wanted = replace(TWO, methods=methods, settings=own, command="conceptors run ...")
    said: list[Event] = []
    results = run(wanted, tmp_path / "new" / "folder", progress=said.append).to_json()
    assert held(tmp_path / "new" / "folder") == results
    assert read_results(tmp_path / "new" / "folder" / "results.json")  # fit for the report
    assert results["schema"] == 1
    assert results["scenario"] == "disjoint-mnist"
    assert results["command"] == "conceptors run ..."
    assert results["task_names"] == ["digits 0, 1, 2, 3, 4", "digits 5, 6, 7, 8, 9"]
    assert [(r["method"], r["seed"]) for r in results["runs"]] == [
        (method, seed) for method in methods for seed in (0, 1)
    ]
    for row in results["runs"]:
        assert len(row["accuracy"]) == 2
        assert all(len(part) == 2 for part in row["accuracy"])
        assert row["seconds"] > 0
        assert row["config"]["hidden"] == "8"
        assert row["config"]["steps"] == (5 if row["method"] == "cab" else 20)
        assert [h["task"] for h in row["history"]] == [0, 1]
        assert len(row["history"][0]["loss"]) == len(row["history"][0]["step"]) > 0
        assert measures(row["accuracy"], [50, 50]).items() <= row.items()
    assert set(results["runs"][2]) >= {"quota", "spectra"}
    assert set(results["summary"]) == set(methods)
    assert set(results["summary"]["sgd"]) == {
        *("mean", "std", "n", "forgetting", "backward_transfer", "seconds")
    }
    assert {"conceptors", "python", "torch", "numpy", "device", "threads"} <= set(
        results["environment"]
    )
    tasks = [event for event in said if event.kind == "task"]
    assert [(e.method, e.seeds, e.task) for e in tasks[-2:]] == [("cab", (1,), 1), ("cab", (1,), 2)]
    assert tasks[-1].accuracy == results["runs"][3]["accuracy"][1][1]
    assert tasks[-1].accuracy_so_far == pytest.approx(results["runs"][3]["final_accuracy"])
    assert (tasks[3].share, tasks[-1].share) == (0.5, 1.0)
    steps = [event for event in said if event.kind == "step"]
    assert {(e.step, e.steps) for e in steps if e.method == "sgd"} == {(10, 20), (20, 20)}
    assert all(0 <= (e.validation or 0.0) <= 100 for e in steps)
    assert results["summary"]["sgd"]["forgetting"] > 10  # it was there, and it is gone


def test_a_preset_brings_reference_and_deviations(tmp_path: Path) -> None:
    small = {"hidden": "6", "steps": 4}
    wanted = replace(TWO, methods=["sgd"], seeds=[0], preset="paper", settings={"*": small})
    results = quietly(wanted, tmp_path)
    assert results["preset"] == "paper"
    assert results["reference"]["cab"]["mean"] == 94.91
    assert results["deviations"]
    assert results["runs"][0]["config"]["gradient"] == "unit"


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = quietly(TWO, tmp_path / "a")
    torch.rand(7)  # whatever happened before
    again = quietly(TWO, tmp_path / "b")
    assert timeless(first) == timeless(again)
    swapped = quietly(replace(TWO, seeds=[1, 0], methods=["ewc", "sgd"]), tmp_path / "c")
    assert {str(r) for r in timeless(swapped)["runs"]} == {str(r) for r in timeless(first)["runs"]}


def test_stacked_seeds_give_the_same_results(tmp_path: Path) -> None:
    seeds = [0, 1, 2]
    alone = quietly(replace(TWO, seeds=seeds), tmp_path / "a")
    stacked = quietly(replace(TWO, seeds=seeds, stacked=2), tmp_path / "b")
    for one, other in zip(alone["runs"], stacked["runs"]):
        assert (one["method"], one["seed"]) == (other["method"], other["seed"])
        for ours, theirs in zip(one["accuracy"], other["accuracy"]):
            assert ours == pytest.approx(theirs, abs=2.01)  # a test image


# --- resuming ----------------------------------------------------------------------------

PROGRAM = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import conceptors.experiments.scenarios.images as images
from conceptors.experiments.runner import Experiment, run
from experiments.tasks import blobs
from experiments.test_experiment import KILLED
images.load = blobs
print("ready", flush=True)
run(KILLED, Path(sys.argv[2]), progress=lambda event: print(event, flush=True))
"""
KILLED = replace(TWO, seeds=[0, 1, 2], settings={"*": {**FAST, "steps": 60, "check_every": 2}})


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
    assert [(r["method"], r["seed"]) for r in held(tmp_path)["runs"]] == [
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


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*/results.json")), ids=str)
def test_committed_results_are_read_and_written_as_they_are(path: Path, tmp_path: Path) -> None:
    Results.read(path).write(tmp_path / "results.json")
    assert held(tmp_path) == held(path.parent)


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


# --- impossible requests -----------------------------------------------------------------


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
        ({"settings": {"sdg": {"rate": 1}}}, "unknown method 'sdg'; did you mean 'sgd'"),
        ({"settings": {"*": {"rate": "x"}}}, "rate='x' is not a float"),
        ({"stacked": -1}, "stacked must be at least 0"),
        ({"device": "cuda:99"}, "this machine has: cpu"),
        ({"device": "abacus"}, "this machine has: cpu"),
    ],
)
def test_an_impossible_request_changes_nothing(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExperimentError, match=message):
        quietly(replace(TWO, **change), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_impossible_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be shared evenly by 3"):
        quietly(replace(TWO, options={"tasks": 3}), tmp_path)
    assert not (tmp_path / "results.json").exists()


# --- numbers -----------------------------------------------------------------------------


def test_measures_by_hand() -> None:
    accuracy = [[90.0, 99.0, 0.0], [95.0, 80.0, 5.0], [60.0, 84.0, 70.0]]
    found = measures(accuracy, [100, 200, 100])
    assert found["final_accuracy"] == pytest.approx((60 + 2 * 84 + 70) / 4)
    assert found["forgetting"] == pytest.approx((35 + 0) / 2)  # 95 -> 60, 84 -> 84
    assert found["backward_transfer"] == pytest.approx((-30 + 4) / 2)
    assert measures(accuracy)["final_accuracy"] == pytest.approx(71.3333)
    assert measures([[50.0]]) == {
        "final_accuracy": 50.0,
        "forgetting": 0.0,
        "backward_transfer": 0.0,
    }


def test_the_summary_by_hand() -> None:
    def row(method: str, final: float, forgetting: float, seconds: float) -> Run:
        return Run(method, 0, [[final]], final, forgetting, -forgetting, seconds, {})

    found = summarise([row("b", 1.0, 3.0, 2.0), row("a", 5.0, 0.0, 1.0), row("b", 4.0, 5.0, 4.0)])
    assert list(found) == ["b", "a"]
    assert found["b"] == {
        "mean": 2.5,
        "std": 2.1213,  # of a sample: n - 1
        "n": 2,
        "forgetting": 4.0,
        "backward_transfer": -4.0,
        "seconds": 3.0,
    }
    assert (found["a"]["std"], found["a"]["n"]) == (0.0, 1)
    undefined = Run("c", 0, [[1.0]], 1.0, None, None, 1.0, {})
    assert summarise([undefined])["c"]["forgetting"] is None


def test_a_run_that_diverged_is_still_strict_json(tmp_path: Path) -> None:
    diverging = {**FAST, "rate": 1e30}
    quietly(replace(TWO, methods=["sgd"], settings={"*": diverging}), tmp_path)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    results = json.loads((tmp_path / "results.json").read_text(), parse_constant=refuse)
    assert None in results["runs"][0]["history"][0]["loss"]
