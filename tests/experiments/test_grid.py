"""All combinations of some settings: each once, whatever happens in between."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conceptors.experiments.engines import Finished, Job, Local
from conceptors.experiments.events import Event, Progress, quiet
from conceptors.experiments.experiment import ExperimentError
from conceptors.experiments.grid import search
from conceptors.experiments.trials import TrialsError, validation_accuracies
from experiments.engines.work import wanted

ONE = wanted(["sgd"], [0, 1])
CHOICES = ["rate=0.1,0.5", "loss=bce,mse"]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def test_every_combination_is_tried_once(tmp_path: Path) -> None:
    said: list[Event] = []
    best = search(ONE, tmp_path, choices=CHOICES, progress=said.append)
    found = lines(tmp_path)
    assert [(row["settings"]["rate"], row["settings"]["loss"]) for row in found] == [
        *((0.1, "bce"), (0.1, "mse"), (0.5, "bce"), (0.5, "mse"))
    ]
    top = max(found, key=lambda row: row["validation"])
    assert best == {"value": top["validation"], "params": top["settings"]}
    told = [event for event in said if event.kind == "trial"]
    assert [(event.step, event.steps) for event in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert told[0].settings == "rate=0.1, loss=bce"
    alone = replace(ONE, settings={"*": {**ONE.settings["*"], "rate": 0.5, "loss": "mse"}})
    assert found[3]["accuracies"] == validation_accuracies(alone, quiet)
    assert found[3]["seeds"] == [0, 1]
    said.clear()
    assert search(ONE, tmp_path, choices=CHOICES, progress=said.append) == best
    assert not said
    search(ONE, tmp_path, choices=["rate=0.1,0.50,1", "loss=mse,bce"], progress=said.append)
    assert {e.settings for e in said if e.kind == "trial"} == {
        "rate=1.0, loss=mse",
        "rate=1.0, loss=bce",
    }
    assert len(lines(tmp_path)) == 6


def test_what_is_done_survives_a_kill(tmp_path: Path) -> None:
    """Killed while a line was written: that trial is done again, and only that one."""

    class StoppedError(Exception):
        pass

    def stop(event: Event) -> None:
        if event.kind == "trial" and event.step == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        search(ONE, tmp_path, choices=CHOICES, progress=stop)
    path = tmp_path / "trials.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    said: list[Event] = []
    search(ONE, tmp_path, choices=CHOICES, progress=said.append)
    assert [event.step for event in said if event.kind == "trial"] == [2, 3, 4]
    assert path.read_bytes().startswith(whole)


class Failing(Local):
    def work(self, jobs: Any, progress: Progress) -> Any:
        for number, job in reversed(list(enumerate(jobs))):
            failed = self.fails(job)
            yield Finished(number, None if failed else job(progress), "no memory" * failed)

    def fails(self, job: Job) -> bool:
        return "rate=0.5" in str(job)


def test_failures_leave_the_rest(tmp_path: Path) -> None:
    with pytest.raises(TrialsError, match="no memory") as caught:
        search(ONE, tmp_path, choices=CHOICES, progress=quiet, engine=Failing())
    assert set(caught.value.failures) == {"rate=0.5, loss=bce", "rate=0.5, loss=mse"}
    assert caught.value.best is not None
    assert caught.value.best["params"]["rate"] == 0.1
    assert len(lines(tmp_path)) == 2
    with pytest.raises(TrialsError) as caught:
        search(ONE, tmp_path / "new", choices=["rate=0.5"], progress=quiet, engine=Failing())
    assert caught.value.best is None


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (["rate=0.1:1"], "takes NAME=a,b,c with --grid, got 'rate=0.1:1'"),
        (["rate"], "takes NAME=a,b,c with --grid"),
        (["rat=1,2"], "no setting 'rat'; did you mean 'rate'"),
        (["rate=1,fast"], "--vary rate=fast: "),
        (["rate=1", "rate=2"], "--vary rate is given twice"),
        (["loss=bce,none"], "--vary loss=none: "),
    ],
)
def test_choices_that_cannot_be(choices: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=message):
        search(ONE, tmp_path / "new", choices=choices, progress=quiet)
    assert not (tmp_path / "new").exists()


def test_other_settings_and_damage_are_refused(tmp_path: Path) -> None:
    search(ONE, tmp_path, choices=["rate=0.1"], progress=quiet)
    for other in (replace(ONE, seeds=[0]), replace(ONE, options={"tasks": 5})):
        with pytest.raises(ExperimentError, match="holds a search with other settings"):
            search(other, tmp_path, choices=["rate=0.1"], progress=quiet)
    with pytest.raises(ExperimentError, match="one method at a time"):
        search(replace(ONE, methods=["sgd", "ewc"]), tmp_path, choices=["rate=1"], progress=quiet)
    before = (tmp_path / "trials.jsonl").read_bytes()
    (tmp_path / "trials.jsonl").write_bytes(before + b"[]\n")
    with pytest.raises(ExperimentError, match=r"damaged \(line 2 is no trial\); move it away"):
        search(ONE, tmp_path, choices=["rate=0.1"], progress=quiet)
