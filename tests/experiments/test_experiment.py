"""Experiments: what is written, and that it is the same every time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conceptors.experiments.events import Event
from conceptors.experiments.methods import METHODS
from conceptors.experiments.results import Run, measures, summarise
from conceptors.experiments.runner import ExperimentError, run
from conceptors.report import read_results
from experiments.runs import FAST, TWO, quietly, read, timeless

pytestmark = pytest.mark.usefixtures("fake")


# --- what is written ---------------------------------------------------------------------


def test_the_results_have_all_parts(tmp_path: Path) -> None:
    methods = ["sgd", "cab"]
    own = {"*": FAST, "cab": {"aperture": 4.0, "steps": 5}}
    wanted = replace(TWO, methods=methods, settings=own, command="conceptors run ...")
    said: list[Event] = []
    results = run(wanted, tmp_path / "new" / "folder", progress=said.append).to_json()
    assert read(tmp_path / "new" / "folder") == results
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
        assert row["together"] == 1
        assert row["machine"] == results["environment"]["device_name"]
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
        ({"settings": {"joitn": {"rate": 1}}}, "unknown method 'joitn'; did you mean 'joint'"),
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


def test_losses_that_are_no_numbers_are_still_strict_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience goes back to weights from before: the run is one, whatever it met on its way."""
    kind: Any = METHODS["sgd"]

    class Wild(kind):  # type: ignore[misc]
        made = 0

        def gradients(self, number: int) -> None:
            super().gradients(number)
            self.made += 1
            if self.made == 5:
                for parameter in self.trained():
                    parameter.grad.fill_(torch.nan)

    monkeypatch.setitem(METHODS, "sgd", Wild)
    wild = {**FAST, "patience": 1, "check_every": 1}
    quietly(replace(TWO, methods=["sgd"], settings={"*": wild}), tmp_path)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    results = json.loads((tmp_path / "results.json").read_text(), parse_constant=refuse)
    assert None in results["runs"][0]["history"][0]["loss"]


def test_with_many_tasks_those_to_come_are_not_tested(tmp_path: Path) -> None:
    tiny = {**FAST, "steps": 1}
    many = replace(TWO, scenario="permuted-mnist", methods=["sgd"], options={"tasks": 21})
    said: list[Event] = []
    results = run(replace(many, seeds=[0], settings={"*": tiny}), tmp_path, progress=said.append)
    (found,) = results.to_json()["runs"]
    assert [len(row) for row in found["accuracy"]] == list(range(1, 22))
    assert {event.tasks for event in said if event.kind == "task"} == {21}
    assert read_results(tmp_path / "results.json")
