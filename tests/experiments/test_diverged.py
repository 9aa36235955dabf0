"""Seeds that diverge: the others go on, and nobody repeats what would fail again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conceptors.experiments.compare import How, plan, run_all, standing
from conceptors.experiments.compare import experiment as of_cell
from conceptors.experiments.engines import Local
from conceptors.experiments.events import Event, quiet
from conceptors.experiments.methods import METHODS, Settings
from conceptors.experiments.results import Results
from conceptors.experiments.runner import Experiment, UnfinishedError, run
from conceptors.experiments.trials import validation_accuracies
from conceptors.report import read_results
from experiments.engines.test_local import Backwards
from experiments.runs import FAST, TWO, read
from experiments.tasks import blobs

pytestmark = pytest.mark.usefixtures("fake")

LEARNERS = sorted(
    name for name, kind in METHODS.items() if issubclass(kind.settings_type, Settings)
)
STACK = replace(TWO, methods=["sgd"], seeds=[0, 1, 2], stacked=3)


def spoil(monkeypatch: pytest.MonkeyPatch, method: str, task: int, seed: int = 1) -> None:
    """From here on, a seed's gradients are far too long in one task."""

    kind: Any = METHODS[method]

    class Spoilt(kind):  # type: ignore[misc]
        def gradients(self, number: int) -> None:
            super().gradients(number)
            if number == task and seed in self.seeds:
                place = self.seeds.index(seed)
                for parameter in self.trained():
                    if parameter.grad is not None:
                        parameter.grad.view(len(self.seeds), -1)[place] *= 1e30

    monkeypatch.setitem(METHODS, method, Spoilt)


def test_training_with_patience_does_not_hide_it(tmp_path: Path) -> None:
    """The weights that did best would be those it began with."""
    wanted = replace(STACK, settings={"*": {**FAST, "patience": 2, "rate": 1e30}})
    assert "sgd seed 0 diverged in task 1 of 2" in str(unfinished(wanted, tmp_path))


def unfinished(experiment: Experiment, folder: Path, **how: Any) -> UnfinishedError:
    with pytest.raises(UnfinishedError) as caught:
        run(experiment, folder, progress=how.pop("progress", quiet), **how)
    return caught.value


@pytest.mark.parametrize(("method", "task"), [("cab", 0), *((name, 1) for name in LEARNERS)])
def test_the_other_seeds_of_a_stack_go_on(
    method: str, task: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"cab-readout": {"lift": 20}}
    wanted = replace(STACK, methods=[method], settings={**STACK.settings, **few})
    whole = run(wanted, tmp_path / "whole", progress=quiet)
    spoil(monkeypatch, method, task)
    said: list[Event] = []
    error = unfinished(wanted, tmp_path / "spoilt", progress=said.append)
    assert str(error) == f"{method} seed 1 diverged in task {task + 1} of 2"
    assert not error.failures
    found = Results.read(tmp_path / "spoilt" / "results.json")
    assert [run.seed for run in found.runs] == [0, 2]
    for ours, theirs in zip(found.runs, (whole.runs[0], whole.runs[2])):
        assert ours.accuracy == theirs.accuracy  # to the last bit: seeds never meet
    assert [(f.method, f.seed) for f in found.failed] == [(method, 1)]
    assert found.summary[method]["n"] == 2
    told = [event for event in said if event.kind == "task"]
    assert 1 not in told[-1].seeds
    assert all(len(event.rows) == len(event.seeds) for event in told)


def test_a_seed_alone_does_not_stop_the_next(tmp_path: Path) -> None:
    alone = replace(STACK, stacked=1, methods=["cab", "sgd"], settings={"cab": {"rate": 1e30}})
    alone.settings["*"] = FAST
    error = unfinished(alone, tmp_path)
    assert [failure.seed for failure in error.diverged] == [0, 1, 2]
    assert error.results.seeds_of("sgd") == {0, 1, 2}


# --- started again -----------------------------------------------------------------------


def test_what_failed_is_tried_again_only_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as for_now:
        spoil(for_now, "sgd", 1)
        unfinished(STACK, tmp_path)
    before = read(tmp_path)
    said: list[Event] = []
    again = unfinished(STACK, tmp_path, progress=said.append)
    assert not said  # nothing was run, and yet it is told
    assert str(again) == "sgd seed 1 diverged in task 2 of 2"
    assert read(tmp_path) == before
    run(replace(STACK, seeds=[0, 2]), tmp_path, progress=said.append)  # of others nothing is told
    assert not said
    found = run(STACK, tmp_path, progress=said.append, retry=True)
    assert {event.seeds for event in said} == {(1,)}
    assert found.seeds_of("sgd") == {0, 1, 2}
    assert "failed" not in read(tmp_path)


def test_other_settings_are_tried_where_all_seeds_failed(tmp_path: Path) -> None:
    hot = replace(STACK, settings={"*": {**FAST, "rate": 1e30}})
    assert len(unfinished(hot, tmp_path).diverged) == 3
    assert not read(tmp_path)["runs"]
    with pytest.raises(ValueError, match=r"runs is empty: sgd seed 0 diverged in task 1 of 2"):
        read_results(tmp_path / "results.json")
    assert run(STACK, tmp_path, progress=quiet).seeds_of("sgd") == {0, 1, 2}


def test_other_settings_of_one_method_that_failed(tmp_path: Path) -> None:
    both = replace(STACK, methods=["sgd", "ewc"])
    unfinished(replace(both, settings={"*": FAST, "ewc": {"rate": 1e30}}), tmp_path)
    found = run(both, tmp_path, progress=quiet)
    assert found.seeds_of("ewc") == found.seeds_of("sgd") == {0, 1, 2}
    assert not found.failed


@pytest.mark.parametrize("engine", [Local(), Backwards()], ids=["here", "elsewhere"])
def test_all_tells_what_diverged(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = plan(["disjoint-mnist-2"], ["sgd", "ewc"], 2).cells
    how = How("cpu", check=True, arrays=blobs())

    def go(how: How) -> tuple[dict[str, str], list[Event]]:
        said: list[Event] = []
        failed = run_all(cells, tmp_path, how, progress=said.append, tell=print, engine=engine)
        return failed, said

    with monkeypatch.context() as for_now:
        spoil(for_now, "ewc", 1)
        failed, _ = go(how)
    assert list(failed) == ["disjoint-mnist-2, ewc"]
    assert "ewc seed 1 diverged in task 2 of 2" in failed["disjoint-mnist-2, ewc"]
    found = standing(of_cell(cells[1], how), tmp_path / "disjoint-mnist-2")
    assert (found.left, [one.seed for one in found.failed]) == ([], [1])
    again, said = go(how)
    assert again == {"disjoint-mnist-2, ewc": "ewc seed 1 diverged in task 2 of 2"}
    assert not said
    last, said = go(replace(how, retry=True))
    assert not last
    assert {event.seeds for event in said} == {(1,)}


def test_nothing_scores_worse_in_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "cab", 1)
    scores = validation_accuracies(replace(STACK, methods=["cab"]), quiet)
    assert scores[1] == 0.0
    assert min(scores[0], scores[2]) > 0
