"""Times of training steps, all methods in turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conceptors.experiments.compare import How, plan
from conceptors.experiments.step_times import StepTimes, time_steps
from experiments.tasks import blobs

TIMES = StepTimes({"sgd": 0.25, "cab": 0.5}, 10, "a fast machine", "2.13.0", "conceptors all")
HOW = How("cpu", check=True, command="conceptors all --steps", arrays=blobs())


@pytest.mark.parametrize("row", ["disjoint-mnist-2", "permuted-mnist-10"])
def test_every_method_that_trains_is_timed(row: str) -> None:
    methods = ["sgd", "ewc", "owm", "cab", "readout"]
    found = time_steps(plan([row], methods, 1).cells, HOW)
    assert list(found.seconds) == ["sgd", "ewc", "owm", "cab"]
    assert all(value > 0 for value in found.seconds.values())
    assert found.ratio("sgd") == 1.0
    assert found.ratio("owm") == found.seconds["owm"] / found.seconds["sgd"]
    assert found.ratio("readout") is None
    assert (found.seeds, found.command) == (1, f"conceptors all --steps --rows {row}")


def test_times_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "steps.json"
    TIMES.write(path)
    assert StepTimes.read(path) == TIMES
    assert TIMES.ratio("cab") == 2.0
    assert replace(TIMES, seconds={"cab": 0.5}).ratio("cab") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"seconds": {}}', "null", '{"seconds": {"sgd": 1.0}, "more": 1}']
)
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"steps\.json does not hold times of steps; make it anew"):
        StepTimes.read(path)


@pytest.mark.parametrize("value", ['"long"', "-1.0", "0", "null", "NaN"])
def test_times_that_cannot_be_are_refused(value: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    TIMES.write(path)
    path.write_text(path.read_text().replace("0.25", value))
    with pytest.raises(ValueError, match="does not hold times of steps"):
        StepTimes.read(path)
