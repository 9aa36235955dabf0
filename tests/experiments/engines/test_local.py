"""Experiments in several processes of this machine."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conceptors.experiments.engines import Local
from conceptors.experiments.events import Event
from conceptors.experiments.runner import run
from experiments.engines.work import noting, until, wanted
from experiments.runs import quietly, timeless


def test_the_results_are_those_of_one_process(tmp_path: Path) -> None:
    asked, events = wanted(["sgd", "ewc"], [0, 1]), list[Event]()
    results = quietly(asked, tmp_path / "many", engine=Local(2), progress=events.append)
    assert timeless(results) == timeless(quietly(asked, tmp_path / "one"))
    assert len(events) == 8  # tasks


def test_a_job_that_fails_raises_and_a_killed_process_is_reported(tmp_path: Path) -> None:
    with noting(tmp_path) as notes:
        engine = Local(2, [str(notes.file)])
        with pytest.raises(ArithmeticError, match="seed 9 is no good"):
            run(wanted(["noting"], [2, 9]), tmp_path / "a", engine=engine)
        free = notes.hold(1)

        def kill() -> None:
            until(lambda: 1 in notes.counts("begin"))
            os.kill(notes.process("begin-1"), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(ChildProcessError, match=r"was killed.*the same command resumes"):
            run(wanted(["noting"], [0, 1]), tmp_path / "b", engine=engine)
        killer.join()
        free.unlink()
        assert len(quietly(wanted(["noting"], [0, 1]), tmp_path / "b", engine=engine)["runs"]) == 2


COMMAND = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conceptors.experiments.engines import Local
from conceptors.experiments.methods import import_methods
from conceptors.experiments.runner import run
from experiments.engines.work import wanted
if __name__ == "__main__":
    import_methods(sys.argv[2])
    run(wanted(["noting"], [0, 1]), Path(sys.argv[3]), engine=Local(2, [sys.argv[2]]))
"""


def test_processes_end_with_a_killed_command(tmp_path: Path) -> None:
    with noting(tmp_path) as notes:
        (program := tmp_path / "command.py").write_text(COMMAND)
        for seed in (0, 1):
            notes.hold(seed)
        words = [str(Path(__file__).parents[2]), str(notes.file), str(tmp_path / "out")]
        with subprocess.Popen([sys.executable, str(program), *words]) as command:
            until(lambda: notes.counts("begin").keys() == {0, 1})
            command.kill()
        until(lambda: not Path(f"/proc/{notes.process('begin-0')}").exists())
