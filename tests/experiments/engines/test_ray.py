"""Experiments on a real Ray: lost workers, failures, and a driver that is killed."""

import os
import signal
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


def test_a_killed_worker_costs_nothing_else(tmp_path: Path, notes: Notes, started: None) -> None:
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
    assert str(caught.value).startswith("noting seed 9 failed:")
    assert "ArithmeticError: seed 9 is no good" in str(caught.value)
    assert notes.counts("failed") == {9: 3}
    assert notes.counts("begin") == {0: 1, 1: 2, 2: 1}
    assert notes.counts("end") == {0: 1, 1: 1, 2: 1}  # nothing lost, nothing twice
    here = quietly(wanted(["noting"], [0, 1, 2]), tmp_path / "here")
    assert timeless(read(tmp_path / "ray")) == timeless(here)
