"""Times of training steps, all methods in turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from conceptors.experiments.compare import How, plan
from conceptors.experiments.methods import METHODS, Learner
from conceptors.experiments.step_times import StepTimes, time_steps
from experiments.tasks import blobs

TIMES = StepTimes({"sgd": 1.0, "cab": 2.0}, 0.25, 10, "a fast machine", "2.13.0", "all --steps")
HOW = How("cpu", check=True, command="conceptors all --steps", arrays=blobs())


class Fails(Learner):
    name: ClassVar[str] = "fails"

    def end_task(self, number: int) -> None:
        raise RuntimeError("out of memory")


class Alone(Learner):
    name: ClassVar[str] = "alone"
    stackable: ClassVar[bool] = False


@pytest.mark.parametrize("row", ["disjoint-mnist-2", "permuted-mnist-10"])
def test_every_method_that_trains_is_timed(row: str) -> None:
    said: list[str] = []
    methods = ["cab", "ewc", "owm", "readout", "sgd"]
    found = time_steps(plan([row], methods, 1).cells, HOW, said.append)
    assert list(found.ratios) == ["sgd", "cab", "ewc", "owm"]
    assert found.ratios["sgd"] == 1.0
    assert all(value > 0 for value in found.ratios.values())
    assert found.plain > 0
    assert (found.seeds, found.command) == (1, f"conceptors all --steps --rows {row}")
    assert not said


def test_what_cannot_be_timed_is_left_out_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Fails, Alone):
        monkeypatch.setitem(METHODS, kind.name, kind)
    said: list[str] = []
    cells = plan(["disjoint-mnist-2"], ["sgd", "fails", "alone"], 2).cells
    found = time_steps(cells, replace(HOW, stacked=2), said.append)
    assert list(found.ratios) == ["sgd"]
    assert said == [
        "disjoint-mnist-2, without alone: it learns fewer seeds at once",
        "disjoint-mnist-2, without fails: RuntimeError: out of memory",
    ]


def test_times_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "steps.json"
    TIMES.write(path)
    assert StepTimes.read(path) == TIMES


def test_other_methods_stay_if_they_were_timed_alike(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    TIMES.write(path)
    replace(TIMES, ratios={"sgd": 1.0, "owm": 3.0}).write(path)
    assert StepTimes.read(path).ratios == {"sgd": 1.0, "cab": 2.0, "owm": 3.0}
    replace(TIMES, ratios={"sgd": 1.0}, machine="another").write(path)
    assert StepTimes.read(path).ratios == {"sgd": 1.0}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"ratios": {}}', "null", '{"ratios": {"sgd": 1.0}, "more": 1}']
)
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"steps\.json does not hold times of steps; make it anew"):
        StepTimes.read(path)


@pytest.mark.parametrize("old", ["2.0", "0.25", "10"])
@pytest.mark.parametrize("value", ['"2.0"', "-1.0", "0", "null", "NaN", "Infinity", "true"])
def test_times_that_cannot_be_are_refused(old: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    TIMES.write(path)
    path.write_text(path.read_text().replace(old, value))
    with pytest.raises(ValueError, match="does not hold times of steps"):
        StepTimes.read(path)
