"""Every method on every benchmark: what is run, what is done already, and what fails."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conceptors.experiments.benchmarks import BENCHMARKS, METHODS_COMPARED
from conceptors.experiments.compare import How, experiment, plan, run_all, standing, why_not
from conceptors.experiments.events import Event, quiet
from conceptors.experiments.experiment import ExperimentError
from conceptors.experiments.methods import METHODS, Learner
from experiments.runs import read, timeless
from experiments.tasks import blobs

ROWS = ["disjoint-mnist-2", "permuted-mnist-10-deep"]
TINY = How("cpu", check=True, command="conceptors all --check", arrays=blobs())


class Fails(Learner):
    name: ClassVar[str] = "fails"
    about: ClassVar[str] = "fails on deep networks"

    def start_task(self, number: int) -> None:
        if len(self.settings.sizes) > 1:
            raise RuntimeError("out of memory")


class Told(Learner):
    name: ClassVar[str] = "told"
    about: ClassVar[str] = "is told the task"
    needs_task_label: ClassVar[bool] = True


@pytest.fixture
def extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods more."""
    for kind in (Fails, Told):
        monkeypatch.setitem(METHODS, kind.name, kind)


def compared(
    folder: Path, rows: list[str], methods: list[str], seeds: int = 1, how: How = TINY
) -> tuple[dict[str, str], list[str]]:
    """(what failed, what was told)."""
    said: list[str] = []
    cells = plan(rows, methods, seeds).cells
    return run_all(cells, folder, how, progress=quiet, tell=said.append), said


# --- the plan ----------------------------------------------------------------------------


def test_all_methods_on_all_benchmarks() -> None:
    made = plan()
    found = {(cell.benchmark.name, cell.method): cell.seeds for cell in made.cells}
    assert {row for row, _ in found} == set(BENCHMARKS)
    assert {method for _, method in found} == set(METHODS_COMPARED) & set(METHODS)
    assert found["disjoint-mnist-2", "cab"] == 10
    assert found["split-cifar100-single", "cab"] == 5
    assert {row for row, method in found if method == "cab-readout"} == set(BENCHMARKS)
    assert ("disjoint-mnist-2", "readout") in found
    assert ("disjoint-mnist-2-deep", "readout") not in found  # the same numbers
    for method in set(METHODS_COMPARED) - set(METHODS):
        assert f"without {method}: there is no such method yet" in made.notes
    assert [n for n in made.notes if n.startswith("without readout on disjoint-mnist-2-deep, ")]


@pytest.mark.usefixtures("extra")
def test_methods_that_are_told_the_task() -> None:
    made = plan(methods=["told"], seeds=3)
    assert [cell.benchmark.name for cell in made.cells] == [
        *("permuted-mnist-10", "permuted-mnist-10-deep", "permuted-mnist-100"),
        "split-cifar100-heads",
    ]
    assert {cell.seeds for cell in made.cells} == {3}
    assert "which nobody tells here" in why_not(BENCHMARKS["disjoint-mnist-2"], "told")


@pytest.mark.parametrize(
    ("rows", "methods", "message"),
    [
        (["disjoint-mnits-2"], [], "unknown benchmark .*did you mean 'disjoint-mnist-2'"),
        ([], ["cba"], "unknown method 'cba'; did you mean 'cab'"),
    ],
)
def test_unknown_names(rows: list[str], methods: list[str], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        plan(rows, methods)


def test_the_settings_of_a_cell() -> None:
    (cell,) = plan(["permuted-mnist-100"], ["cab"]).cells
    full = experiment(cell, How("cpu"))
    assert full.options == {"tasks": 100}
    assert full.seeds == list(range(10))
    assert full.config("cab")["hidden"] == "2000,2000"
    small = experiment(cell, TINY)
    assert small.options == {"tasks": 5}
    assert small.config("cab")["hidden"] == "16,16"  # as many layers
    assert small.config("cab")["steps"] == 3
    assert small.command == "conceptors all --check --rows permuted-mnist-100"


# --- running -----------------------------------------------------------------------------


def test_every_benchmark_has_its_folder(tmp_path: Path) -> None:
    failed, said = compared(tmp_path, ROWS, ["sgd", "joint", "readout"], seeds=2)
    assert not failed
    assert said[0] == "[1/5] disjoint-mnist-2, sgd, 2 seeds"
    assert said[1].startswith("[1/5] disjoint-mnist-2, sgd: ")
    first, deep = (read(tmp_path / row) for row in ROWS)
    assert list(first["summary"]) == ["sgd", "joint", "readout"]
    assert list(deep["summary"]) == ["sgd", "joint"]
    assert first["preset"] == "disjoint-mnist-2"
    assert first["reference"]["owm"]["mean"] == 96.35
    assert deep["runs"][0]["config"]["hidden"] == "16,16"
    assert [run["seed"] for run in deep["runs"]] == [0, 1, 0, 1]

    before = (tmp_path / ROWS[0] / "results.json").read_bytes()
    failed, said = compared(tmp_path, ROWS, ["sgd", "joint", "readout"], seeds=2)
    assert said == ["5 of 5 done already"]
    assert (tmp_path / ROWS[0] / "results.json").read_bytes() == before
    failed, said = compared(tmp_path, ROWS, ["sgd", "imm"], seeds=3)  # more of both
    assert [line for line in said if line.endswith(("seed", "seeds"))] == [
        "[1/4] disjoint-mnist-2, sgd, 1 seed",
        "[2/4] disjoint-mnist-2, imm, 3 seeds",
        "[3/4] permuted-mnist-10-deep, sgd, 1 seed",
        "[4/4] permuted-mnist-10-deep, imm, 3 seeds",
    ]


def test_one_benchmark_on_colour_images(tmp_path: Path) -> None:
    how = How("cpu", check=True, arrays=blobs("cifar100"))
    failed, _ = compared(tmp_path, ["split-cifar100-heads"], ["sgd", "readout"], how=how)
    assert not failed
    assert len(read(tmp_path / "split-cifar100-heads")["task_names"]) == 5


def test_few_samples_are_evenly_spaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set that is sorted by class still has all of them."""
    whole = blobs(test=4000)
    order = whole.test_y.argsort()
    by_class = whole._replace(test_x=whole.test_x[order], test_y=whole.test_y[order])
    asked: list[str] = []

    def load(name: str) -> Any:
        asked.append(name)
        return by_class

    monkeypatch.setattr("conceptors.experiments.compare.load", load)
    failed, _ = compared(tmp_path, ["disjoint-mnist-10"], ["sgd"], how=How("cpu", check=True))
    assert not failed
    assert asked == ["mnist"]


@pytest.mark.usefixtures("extra")
def test_a_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    failed, said = compared(tmp_path, ROWS, ["fails", "sgd"])
    assert failed == {"permuted-mnist-10-deep, fails": "RuntimeError: out of memory"}
    assert "[3/4] permuted-mnist-10-deep, fails: failed, RuntimeError: out of memory" in said
    assert said[-1].startswith("[4/4] permuted-mnist-10-deep, sgd: ")
    note = tmp_path / ROWS[1] / "failed-fails.txt"
    assert "Traceback" in note.read_text()
    assert list(read(tmp_path / ROWS[0])["summary"]) == ["fails", "sgd"]
    failed, said = compared(tmp_path, ROWS, ["fails", "sgd"])  # only what failed is tried again
    assert said[0] == "3 of 4 done already"
    assert len(failed) == 1


@pytest.mark.usefixtures("extra")
def test_the_note_of_a_failure_goes_when_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(tmp_path, ROWS[1:], ["fails"])
    monkeypatch.setattr(Fails, "start_task", Learner.start_task)
    failed, _ = compared(tmp_path, ROWS[1:], ["fails"])
    assert not failed
    assert not list((tmp_path / ROWS[1]).glob("failed-*"))


def test_results_of_other_settings_are_told_and_kept(tmp_path: Path) -> None:
    compared(tmp_path, ROWS[:1], ["sgd"])
    before = (tmp_path / ROWS[0] / "results.json").read_bytes()
    (cell,) = plan(ROWS[:1], ["sgd"], 1).cells
    assert standing(experiment(cell, How("cpu")), tmp_path / ROWS[0]).left == [0]
    failed, _ = compared(tmp_path, ROWS[:1], ["sgd"], how=How("cpu", arrays=blobs()))
    assert "holds results of other settings" in failed["disjoint-mnist-2, sgd"]
    assert (tmp_path / ROWS[0] / "results.json").read_bytes() == before


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / ROWS[0]).mkdir()
    (tmp_path / ROWS[0] / "results.json").write_text("{")
    failed, _ = compared(tmp_path, ROWS[:1], ["sgd"])
    assert "is not JSON" in failed["disjoint-mnist-2, sgd"]


def test_an_unusable_device_comes_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'cuda:77' cannot be used"):
        run_all(plan().cells, tmp_path, How("cuda:77"), progress=quiet, tell=print)
    assert not list(tmp_path.iterdir())


# --- killed ------------------------------------------------------------------------------

PROGRAM = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from conceptors.experiments.compare import plan, run_all
from experiments.test_compare import ROWS, TINY
print("ready", flush=True)
told = lambda event: print(event, flush=True)
cells = plan(ROWS, ["sgd", "joint"], 2).cells
run_all(cells, Path(sys.argv[2]), TINY, progress=told, tell=told)
"""


def test_a_killed_comparison_resumes_to_the_same_results(tmp_path: Path) -> None:
    """kill -9 at some moments; then the same again until it is done."""
    chance = random.Random(1)
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", PROGRAM, tests, str(tmp_path / "killed")]
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(chance.randint(8, 25)):  # at least one seed is done
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.returncode == -signal.SIGKILL
    resumed, said = compared(tmp_path / "killed", ROWS, ["sgd", "joint"], seeds=2)
    fresh, all_said = compared(tmp_path / "fresh", ROWS, ["sgd", "joint"], seeds=2)
    assert resumed == fresh == {}
    assert said[0] != all_said[0]  # something was there already
    for row in ROWS:
        assert timeless(read(tmp_path / "killed" / row)) == timeless(read(tmp_path / "fresh" / row))


def test_an_interruption_is_no_failure(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(plan(ROWS, ["sgd"], 1).cells, tmp_path, TINY, progress=stop, tell=lambda _: None)
    assert not list(tmp_path.glob("*/failed-*"))


def test_a_shared_machine_is_noted(tmp_path: Path) -> None:
    """The results are otherwise the same, and belong together with others."""
    for shared in (False, True):
        folder = tmp_path / str(shared)
        assert compared(folder, ROWS[:1], ["sgd"], how=replace(TINY, shared=shared))[0] == {}
        (found,) = read(folder / ROWS[0])["runs"]
        assert found.get("shared", False) is shared
    wanted = experiment(plan(ROWS[:1], ["sgd"], 1).cells[0], TINY)
    assert standing(wanted, tmp_path / "True" / ROWS[0]).left == []
