"""Small experiments for engines, and what their jobs note in other processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conceptors.experiments.experiment import Experiment
from conceptors.experiments.methods import METHODS, import_methods
from experiments.runs import FAST
from experiments.tasks import blobs

# A file that other processes load with --import. A note is a file in a folder beside it, as several
# processes take them at once.
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
    about = "notes when it begins and ends a seed, and waits where it is held"

    def start_task(self, number):
        seed = self.scenario.seed
        note(f"{'end' if number else 'begin'}-{seed}")
        while not number and (NOTES / f"wait-{seed}").exists():
            time.sleep(0.02)

@add
class Failing(Learner):
    name = "failing"
    about = "fails with seed 1"

    def start_task(self, number):
        if self.scenario.seed == 1:
            note("failed-1")
            raise ArithmeticError("seed 1 is no good")
"""


class Own:
    """The file with methods, and its notes."""

    def __init__(self, folder: Path) -> None:
        self.file, self.notes = folder / "own.py", folder / "notes"
        self.file.write_text(OWN)
        self.notes.mkdir()

    def counts(self, what: str) -> dict[int, int]:
        """How often each seed did something."""
        return dict(Counter(int(path.name.split("-")[1]) for path in self.notes.glob(f"{what}-*")))

    def process(self, what: str) -> int:
        """The process that noted something, the only one."""
        (path,) = self.notes.glob(f"{what}-*-*")
        return int(path.name.split("-")[2])

    def hold(self, seed: int) -> Path:
        """Let a seed wait until the file is removed."""
        path = self.notes / f"wait-{seed}"
        path.touch()
        return path


@contextmanager
def own_methods(folder: Path) -> Iterator[Own]:
    """Methods that are known inside only."""
    own, before = Own(folder), dict(METHODS)
    import_methods(own.file)
    yield own
    METHODS.clear()
    METHODS.update(before)


def wanted(methods: list[str], seeds: list[int]) -> Experiment:
    """An experiment whose data goes along to other processes."""
    settings = {"*": {**FAST, "steps": 4, "check_every": 4}}
    return Experiment("disjoint-mnist", methods, seeds, settings=settings, arrays=blobs())


def until(what: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
