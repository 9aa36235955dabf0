"""Experiments on a real Ray: lost workers, failures, and a driver that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conceptors.experiments.engines import Ray
from conceptors.experiments.runner import UnfinishedError, run
from experiments.engines.work import Notes, noting, until, wanted
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
def notes(tmp_path: Path) -> Iterator[Notes]:
    with noting(tmp_path) as notes:
        yield notes


def test_a_killed_worker_and_a_failure_cost_nothing_else(
    tmp_path: Path, notes: Notes, started: None
) -> None:
    """The worker of one seed is killed in its midst, when others are done; one seed fails."""
    free = notes.hold(1)

    def kill() -> None:
        until(lambda: notes.counts("end").keys() >= {0} and 1 in notes.counts("begin"))
        os.kill(notes.process("begin-1"), signal.SIGKILL)
        until(lambda: notes.counts("begin")[1] == 2)
        free.unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    asked = wanted(["noting"], [0, 1, 9, 2])
    with pytest.raises(UnfinishedError) as caught:
        run(asked, tmp_path / "ray", engine=Ray(imports=[str(notes.file)]))
    killer.join()
    ((name, traceback),) = caught.value.failures.items()
    assert name == "disjoint-mnist, noting seed 9"
    assert "ArithmeticError: seed 9 is no good" in traceback
    assert notes.counts("failed") == {9: 3}
    assert notes.counts("begin") == {0: 1, 1: 2, 2: 1}
    assert notes.counts("end") == {0: 1, 1: 1, 2: 1}  # nothing lost, nothing twice
    here = quietly(wanted(["noting"], [0, 1, 2]), tmp_path / "here")
    assert timeless(read(tmp_path / "ray")) == timeless(here)


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


def test_a_killed_driver_loses_no_finished_seed(
    tmp_path: Path, notes: Notes, started: None
) -> None:
    """It is killed as soon as two seeds are written; the next one does only the third."""
    free = notes.hold(1)
    words = [str(Path(__file__).parents[2]), str(notes.file)]
    words += [ray.get_runtime_context().gcs_address, str(tmp_path)]
    with subprocess.Popen([sys.executable, "-c", DRIVER, *words]) as driver:
        until(lambda: (tmp_path / "results.json").exists() and len(read(tmp_path)["runs"]) == 2)
        until(lambda: 1 in notes.counts("begin"))
        driver.kill()
    before, process = read(tmp_path)["runs"], notes.process("begin-1")
    until(lambda: not Path(f"/proc/{process}").exists())  # Ray ends the tasks of a lost driver
    free.unlink()
    engine = Ray(imports=[str(notes.file)])
    results = quietly(wanted(["noting"], [0, 1, 2]), tmp_path, engine=engine)
    assert notes.counts("end") == {0: 1, 1: 1, 2: 1}
    assert [results["runs"][0], results["runs"][2]] == before
