"""Small experiments for engines, and what their jobs note in other processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from conceptors.experiments.experiment import Experiment
from experiments.runs import FAST
from experiments.tasks import blobs

# A file that other processes load with --import. A note is a file of its own, in a folder beside
# it: several processes take them at once.
OWN = """
import os, time
from pathlib import Path
from conceptors.methods import Learner, add

NOTES = Path(__file__).parent / "notes"

def note(words):
    (NOTES / f"{words}-{os.getpid()}-{time.monotonic_ns()}").touch()

@add
class Noting(Learner):
    name = "noting"
    about = "notes when it begins and ends a seed; in between it waits as long as it is told"

    def start_task(self, number):
        seed = self.scenario.seeds[0]
        if number == 0:
            note(f"begin-{seed}")
            while (NOTES / f"wait-{seed}").exists():
                time.sleep(0.02)
        else:
            note(f"end-{seed}")

@add
class Failing(Learner):
    name = "failing"
    about = "fails with seed 1"

    def start_task(self, number):
        if self.scenario.seeds[0] == 1:
            note("failed-1")
            raise ArithmeticError("seed 1 is no good")
"""


class Own:
    """The file with methods, and its notes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "own.py"
        self.file.write_text(OWN)
        self.notes = folder / "notes"
        self.notes.mkdir()

    def clear(self) -> None:
        for path in self.notes.iterdir():
            path.unlink()

    def counts(self, what: str) -> dict[int, int]:
        """How often each seed did something."""
        found = Counter(int(path.name.split("-")[1]) for path in self.notes.glob(f"{what}-*"))
        return dict(sorted(found.items()))

    def process(self, what: str) -> int:
        """The process that noted something, the only one."""
        (path,) = self.notes.glob(f"{what}-*-*")
        return int(path.name.split("-")[2])

    def hold(self, seed: int) -> Path:
        """Let a seed wait until the file is removed."""
        path = self.notes / f"wait-{seed}"
        path.touch()
        return path


def wanted(methods: list[str], seeds: list[int]) -> Experiment:
    """An experiment on data of its own, which goes along to other processes."""
    settings = {"*": {**FAST, "steps": 4, "check_every": 4}}
    return Experiment("disjoint-mnist", methods, seeds, settings=settings, arrays=blobs())


def until(what: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
