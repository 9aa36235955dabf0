"""Experiments on a real Ray: lost workers, failures, and a driver that is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conceptors.experiments.engines import Ray
from conceptors.experiments.events import Event
from conceptors.experiments.runner import UnfinishedError, run
from experiments.engines.work import Own, own_methods, until, wanted
from experiments.runs import quietly, read, timeless

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


@pytest.fixture(scope="module")
def started() -> Iterator[None]:
    """A Ray of two workers; it takes ten seconds to start."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    with own_methods(tmp_path) as own:
        yield own


@pytest.fixture
def engine(started: None, own: Own) -> Ray:
    return Ray(imports=[str(own.file)])


def test_the_results_are_those_of_one_process(tmp_path: Path, engine: Ray) -> None:
    asked, events = wanted(["sgd", "ewc"], [0, 1]), list[Event]()
    results = quietly(asked, tmp_path / "ray", engine=engine, progress=events.append)
    assert timeless(results) == timeless(quietly(asked, tmp_path / "here"))
    assert events[-1].share == 1.0
    assert len(events) == 8  # methods, seeds and tasks: two of each


def test_a_killed_worker_costs_nothing(tmp_path: Path, own: Own, engine: Ray) -> None:
    """The worker of one seed is killed in its midst, when others are done."""
    free = own.hold(1)

    def kill() -> None:
        until(lambda: own.counts("end").keys() >= {0} and 1 in own.counts("begin"))
        os.kill(own.process("begin-1"), signal.SIGKILL)
        until(lambda: own.counts("begin")[1] == 2)
        free.unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    asked = wanted(["noting"], [0, 1, 2, 3])
    results = quietly(asked, tmp_path / "ray", engine=engine)
    killer.join()
    assert own.counts("begin") == {0: 1, 1: 2, 2: 1, 3: 1}
    assert own.counts("end") == {0: 1, 1: 1, 2: 1, 3: 1}  # nothing lost, nothing twice
    assert timeless(results) == timeless(quietly(asked, tmp_path / "here"))


def test_what_fails_three_times_does_not_stop_the_rest(
    tmp_path: Path, own: Own, engine: Ray
) -> None:
    with pytest.raises(UnfinishedError) as caught:
        run(wanted(["failing", "sgd"], [0, 1]), tmp_path, engine=engine)
    ((name, why),) = caught.value.failures.items()
    assert name == "disjoint-mnist, failing seed 1"
    assert "ArithmeticError: seed 1 is no good" in why
    assert own.counts("failed") == {1: 3}
    pairs = [(row["method"], row["seed"]) for row in read(tmp_path)["runs"]]
    assert pairs == [("failing", 0), ("sgd", 0), ("sgd", 1)]


DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conceptors.experiments.engines import Ray
from conceptors.experiments.methods import import_methods
from conceptors.experiments.runner import run
from experiments.engines.work import wanted
import_methods(sys.argv[2])
engine = Ray(imports=[sys.argv[2]], address=sys.argv[3])
run(wanted(["noting"], [0, 1, 2]), Path(sys.argv[4]), engine=engine)
"""


def test_a_killed_driver_loses_no_finished_seed(tmp_path: Path, own: Own, engine: Ray) -> None:
    """It is killed as soon as two seeds are written; the next one does only the third."""
    free = own.hold(1)
    words = [str(Path(__file__).parents[2]), str(own.file)]
    words += [ray.get_runtime_context().gcs_address, str(tmp_path)]
    with subprocess.Popen([sys.executable, "-c", DRIVER, *words]) as driver:
        until(lambda: (tmp_path / "results.json").exists() and len(read(tmp_path)["runs"]) == 2)
        until(lambda: 1 in own.counts("begin"))
        driver.kill()
    before = read(tmp_path)["runs"]
    process = own.process("begin-1")
    until(lambda: not Path(f"/proc/{process}").exists())  # Ray ends the tasks of a lost driver
    free.unlink()
    results = quietly(wanted(["noting"], [0, 1, 2]), tmp_path, engine=engine)
    assert own.counts("end") == {0: 1, 1: 1, 2: 1}
    assert [results["runs"][0], results["runs"][2]] == before


def test_impossible_resources_and_addresses(tmp_path: Path, started: None) -> None:
    asked = wanted(["sgd"], [0])
    with pytest.raises(ValueError, match=r"asks for 500 CPUs .*lower --cpus-per-run"):
        run(asked, tmp_path, engine=Ray(cpus=500))
    with pytest.raises(ValueError, match="needs --gpus-per-run 1"):
        Ray().device("cuda")
    ray.shutdown()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # taken, and nobody listens
        port = free.getsockname()[1]
        with pytest.raises(ConnectionError, match=r"cannot reach a Ray .*ray start --head"):
            run(asked, tmp_path, engine=Ray(address=f"ray://127.0.0.1:{port}"))
