"""Experiments: what is written, that it is the same every time, and that nothing gets lost."""

import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conceptors.experiments.events import Event
from conceptors.experiments.results import measures, read_results, summarise
from conceptors.experiments.runner import UnfinishedError, run
from experiments.runs import FAST, TWO, quietly, read, timeless

pytestmark = pytest.mark.usefixtures("fake")
ONE = replace(TWO, methods=["sgd"], seeds=[0], settings={"*": {**FAST, "steps": 2}})


def test_the_results_have_all_parts(tmp_path: Path) -> None:
    settings = {"*": FAST, "cab": {"aperture": 4.0}}
    asked = replace(TWO, methods=["sgd", "cab"], settings=settings, command="conceptors run ...")
    events: list[Event] = []
    results = quietly(asked, tmp_path / "new" / "folder", progress=events.append)
    assert read_results(tmp_path / "new" / "folder" / "results.json") == results
    assert (results["schema"], results["command"]) == (1, "conceptors run ...")
    assert results["task_names"] == ["digits 0, 1, 2, 3, 4", "digits 5, 6, 7, 8, 9"]
    pairs = [(row["method"], row["seed"]) for row in results["runs"]]
    assert pairs == [("sgd", 0), ("sgd", 1), ("cab", 0), ("cab", 1)]
    for row in results["runs"]:
        assert [len(part) for part in row["accuracy"]] == [2, 2]
        assert row["config"]["steps"] == 20
        assert measures(row["accuracy"], [50, 50]).items() <= row.items()
    assert set(results["runs"][2]) >= {"quota", "spectra"}
    assert set(results["summary"]["sgd"]) >= {"mean", "std", "n", "forgetting"}
    assert results["summary"]["sgd"]["forgetting"] > 10
    tasks = [event.text[:24] for event in events if not event.is_step]
    assert tasks[-2:] == ["cab, seed 1, task 1 of 2", "cab, seed 1, task 2 of 2"]


def test_a_preset_brings_reference_and_deviations(tmp_path: Path) -> None:
    asked = replace(ONE, preset="paper", settings={"*": {"hidden": "6", "steps": 3}})
    results = quietly(asked, tmp_path)
    assert results["reference"]["cab"]["mean"] == 94.91
    assert results["deviations"]
    config = results["runs"][0]["config"]
    assert (config["gradient"], config["steps"]) == ("unit", 3)


def test_epochs_replace_the_steps_of_a_preset() -> None:
    config = replace(ONE, preset="paper", settings={"*": {"epochs": 1}}).config("sgd")
    assert (config["epochs"], config["steps"]) == (1.0, 0)


def test_the_same_seed_gives_the_same_numbers_in_any_order(tmp_path: Path) -> None:
    first = timeless(quietly(TWO, tmp_path / "a"))
    torch.rand(7)  # whatever happened before
    swapped = timeless(quietly(replace(TWO, seeds=[1, 0], methods=["ewc", "sgd"]), tmp_path / "b"))
    assert {str(r) for r in swapped["runs"]} == {str(r) for r in first["runs"]}
    run(replace(TWO, methods=["sgd"], seeds=[1]), tmp_path / "c")
    run(replace(TWO, methods=["ewc"], seeds=[0]), tmp_path / "c")
    events: list[Event] = []
    assert timeless(quietly(TWO, tmp_path / "c", progress=events.append)) == first
    assert {event.text[:11] for event in events} == {"sgd, seed 0", "ewc, seed 1"}


def test_of_many_tasks_future_ones_are_not_tested(tmp_path: Path) -> None:
    asked = replace(ONE, scenario="permuted-mnist", options={"tasks": 21})
    (row,) = quietly(asked, tmp_path)["runs"]
    assert [len(part) for part in row["accuracy"]] == list(range(1, 22))


def test_measures_and_summary_by_hand() -> None:
    accuracy = [[90.0, 99.0, 0.0], [95.0, 80.0, 5.0], [60.0, 84.0, 70.0]]
    assert measures(accuracy, [100, 200, 100]) == {
        "final_accuracy": (60 + 2 * 84 + 70) / 4,
        "forgetting": (35 + 0) / 2,  # 95 -> 60, 84 -> 84
    }
    rows = [{"method": "a", "final_accuracy": x, "forgetting": x + 1} for x in (1.0, 4.0)]
    summary = summarise(rows)["a"]  # the deviation of a sample: n - 1
    assert (summary["mean"], summary["std"], summary["n"]) == (2.5, 2.1213, 2)
    assert (summary["forgetting"], summary["seconds"]) == (3.5, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scenario": "disjoint-mnits"}, "did you mean 'disjoint-mnist'"),
        ({"methods": ["swd"]}, "unknown method 'swd'; did you mean 'sgd'"),
        ({"methods": []}, "no method given"),
        ({"seeds": [1, 1]}, "seeds must be different"),
        ({"preset": "bst"}, "did you mean 'best'"),
        ({"preset": "best", "options": {"tasks": 1}}, "not tuned for it.*disjoint-mnist-2"),
        ({"scenario": "rotated-mnist", "preset": "paper"}, "has no settings for scenario"),
        ({"settings": {"sgd": {"rat": 1}}}, "did you mean 'rate'"),
        ({"settings": {"*": {"rat": 1}}}, "did you mean 'rate'"),
        ({"settings": {"joitn": {"rate": 1}}}, "unknown method 'joitn'; did you mean 'joint'"),
        ({"settings": {"*": {"rate": "x"}}}, "rate='x' is not of type float"),
        ({"device": "abacus"}, "this machine has: cpu"),
    ],
)
def test_an_impossible_request_changes_nothing(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        run(replace(TWO, **change), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_other_settings_in_the_folder_are_refused(tmp_path: Path) -> None:
    def second(event: Event) -> None:
        with pytest.raises(ValueError, match="another run is writing"):
            run(TWO, tmp_path)

    before = quietly(ONE, tmp_path, progress=second)
    changes: dict[str, dict[str, Any]] = {
        r"sgd\.rate: 0\.1 there, 0\.5": {"settings": {"*": {**FAST, "steps": 2, "rate": 0.5}}},
        r"options: {} there, {'tasks': 5} now": {"options": {"tasks": 5}},
        "scenario: 'disjoint-mnist' there": {"scenario": "permuted-mnist"},
        "preset: None there, 'best' now": {"preset": "best"},
    }
    for message, change in changes.items():
        with pytest.raises(ValueError, match=message):
            run(replace(ONE, **change), tmp_path)
    assert read(tmp_path) == before


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
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    resumed = quietly(KILLED, tmp_path / "killed")
    assert timeless(resumed) == timeless(quietly(KILLED, tmp_path / "uninterrupted"))
    assert len(resumed["runs"]) == 6


def test_seeds_that_diverge_do_not_stop_the_others(tmp_path: Path) -> None:
    hot = replace(TWO, methods=["cab", "sgd"], settings={"*": FAST, "cab": {"rate": 1e30}})
    for _ in range(2):  # started again, it reports them and does not run them
        with pytest.raises(UnfinishedError, match="cab seed 0 diverged in task 1 of 2") as error:
            run(hot, tmp_path)
        assert len(str(error.value).splitlines()) == 2
    results = read(tmp_path)
    assert [(row["method"], row["seed"]) for row in results["runs"]] == [("sgd", 0), ("sgd", 1)]
    assert [failure["seed"] for failure in results["failed"]] == [0, 1]
    with pytest.raises(ValueError, match=r"cab\.rate: 1e\+30 there, 0\.1 now"):
        run(replace(hot, settings={"*": FAST}), tmp_path)
    with pytest.raises(UnfinishedError):
        run(replace(hot, methods=["cab"]), tmp_path / "hot")
    with pytest.raises(ValueError, match="runs is empty: cab seed 0 diverged in task 1 of 2"):
        read_results(tmp_path / "hot" / "results.json")
