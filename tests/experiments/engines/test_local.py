"""What every engine is given, and the one that needs nothing installed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from conceptors.experiments.compare import How, plan, run_all
from conceptors.experiments.engines import Finished, Job, Local, Ray, Resources, Slurm
from conceptors.experiments.engines.remote import perform, replay
from conceptors.experiments.events import Event, Progress, quiet
from conceptors.experiments.experiment import ExperimentError
from conceptors.experiments.pieces import Piece
from conceptors.experiments.runner import UnfinishedError, run
from experiments.engines.work import wanted
from experiments.runs import quietly, read, timeless
from experiments.tasks import blobs

ONE = wanted(["sgd", "ewc"], [0, 1])


class Backwards:
    """Jobs through the path that other machines take, the last one first; one of them fails."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing

    def device(self, name: str) -> str:
        return Resources().device(name)

    def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Finished]:
        for number in reversed(range(len(jobs))):
            job: Job = pickle.loads(pickle.dumps(jobs[number]))
            if self.failing and self.failing in str(job):
                yield Finished(number, failure="Traceback\nMemoryError: too much")
            else:
                yield Finished(number, replay(perform(job, Resources()), progress))


def test_this_process_is_the_default(tmp_path: Path) -> None:
    given = run(ONE, tmp_path / "given", progress=quiet, engine=Local())
    assert timeless(given.to_json()) == timeless(quietly(ONE, tmp_path / "default"))


def test_the_order_in_which_runs_come_back_does_not_matter(tmp_path: Path) -> None:
    said: list[Event] = []
    rows: dict[tuple[str, int], list[float]] = {}
    found = run(
        ONE,
        tmp_path / "backwards",
        progress=said.append,
        log=lambda method, seed, task, row: rows.update({(method, seed): row}),
        engine=Backwards(),
    ).to_json()
    assert timeless(found) == timeless(quietly(ONE, tmp_path / "forwards"))
    assert rows == {(r["method"], r["seed"]): r["accuracy"][-1] for r in found["runs"]}
    assert [event.share for event in said[-4:]][-1] <= 1.0


def test_one_failure_leaves_the_rest(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError, match="MemoryError: too much") as caught:
        run(ONE, tmp_path, progress=quiet, engine=Backwards("ewc seed 1"))
    assert list(caught.value.failures) == ["disjoint-mnist, ewc seed 1"]
    assert len(caught.value.results.runs) == 3
    assert len(read(tmp_path)["runs"]) == 3
    resumed = run(ONE, tmp_path, progress=quiet, engine=Backwards())
    assert timeless(resumed.to_json()) == timeless(quietly(ONE, tmp_path / "here"))


def test_no_run_at_all_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError):
        run(ONE, tmp_path, progress=quiet, engine=Backwards("disjoint"))
    assert not (tmp_path / "results.json").exists()
    assert len(quietly(ONE, tmp_path)["runs"]) == 4


def test_a_run_that_comes_twice_is_taken_once(tmp_path: Path) -> None:
    class Twice(Backwards):
        def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Finished]:
            yield from super().work(jobs, progress)
            yield from super().work(jobs, progress)

    found = run(ONE, tmp_path / "twice", progress=quiet, engine=Twice()).to_json()
    assert timeless(found) == timeless(quietly(ONE, tmp_path / "once"))


def test_all_benchmarks_side_by_side(tmp_path: Path) -> None:
    cells = plan(["disjoint-mnist-2", "permuted-mnist-10-deep"], ["sgd", "joint"], 2).cells
    how = How("cpu", check=True, command="conceptors all --check", arrays=blobs())
    told: list[str] = []
    failing = Backwards("permuted-mnist, joint seed 1")
    failed = run_all(cells, tmp_path / "a", how, progress=quiet, tell=told.append, engine=failing)
    assert failed == {"permuted-mnist-10-deep, joint": "MemoryError: too much"}
    assert told[0] == "8 runs to do"
    note = tmp_path / "a" / "permuted-mnist-10-deep" / "failed-joint.txt"
    assert "Traceback" in note.read_text()
    again = run_all(
        cells, tmp_path / "a", how, progress=quiet, tell=told.append, engine=Backwards()
    )
    assert again == {}
    assert "1 run to do" in told
    assert not note.exists()
    assert run_all(cells, tmp_path / "b", how, progress=quiet, tell=told.append) == {}
    for row in ("disjoint-mnist-2", "permuted-mnist-10-deep"):
        assert timeless(read(tmp_path / "a" / row)) == timeless(read(tmp_path / "b" / row))


def test_results_of_other_settings_stop_only_their_benchmark(tmp_path: Path) -> None:
    how = How("cpu", check=True, arrays=blobs())
    folder = tmp_path / "disjoint-mnist-2"
    folder.mkdir()
    (folder / "results.json").write_text("{")
    cells = plan(["disjoint-mnist-2", "disjoint-mnist-5"], ["sgd"], 1).cells
    failed = run_all(cells, tmp_path, how, progress=quiet, tell=print, engine=Backwards())
    assert "is not JSON" in failed["disjoint-mnist-2, sgd"]
    assert len(failed) == 1
    assert read(tmp_path / "disjoint-mnist-5")["runs"]


def test_the_key_of_a_piece() -> None:
    """The same work has the same, whatever else is asked for with it."""
    piece = Piece(ONE, "sgd", [0])
    assert piece.key == Piece(replace(ONE, methods=["sgd"], seeds=[0, 5]), "sgd", [0]).key
    assert piece.key.startswith("disjoint-mnist-sgd-0-")
    others = [Piece(ONE, "sgd", [1]), Piece(ONE, "ewc", [0])]
    others.append(Piece(replace(ONE, settings={"*": {"rate": 0.5}}), "sgd", [0]))
    others.append(Piece(replace(ONE, options={"tasks": 5}), "sgd", [0]))
    assert len({piece.key, *(other.key for other in others)}) == 5


def test_resources_and_devices() -> None:
    assert Resources().device("auto") == "cpu"  # whatever this machine has
    assert Resources(gpus=0.5).device("auto") == "cuda"
    assert Resources(gpus=1).device("cuda") == "cuda"
    with pytest.raises(ExperimentError, match="needs --gpus-per-run 1"):
        Resources().device("cuda")
    for wrong in ({"cpus": 0}, {"gpus": -1.0}, {"gpus": float("nan")}):
        with pytest.raises(ExperimentError, match="at least 1 CPU and 0 GPUs"):
            Resources(**wrong)


def test_another_version_is_told_where_the_work_is_done() -> None:
    report = perform(Piece(ONE, "sgd", [0]), Resources(version="0.0.1"))
    assert "the command came from 0.0.1; install the same on both" in report["failure"]


@pytest.mark.parametrize(
    ("engine", "module", "extra"), [(Ray, "ray", "ray"), (Slurm, "submitit", "submitit")]
)
def test_an_engine_that_is_not_installed(
    engine: type, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"conceptors.experiments.engines.{engine.__name__.lower()}.find_spec", none)
    with pytest.raises(ImportError, match=rf"pip install 'conceptors\[{extra}\]'"):
        engine(tmp_path)


def none(name: str) -> None:
    """No module is found."""
