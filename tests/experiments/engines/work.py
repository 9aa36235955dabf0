"""Small experiments for engines, and what their jobs note in other processes."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conceptors.experiments.experiment import Experiment
from conceptors.experiments.methods import METHODS, import_methods
from experiments.runs import FAST
from experiments.tasks import blobs

# Other processes load this file with --import. A note is a file, as several processes take notes.
OWN = """
import os, time
from pathlib import Path
from conceptors.methods import Learner, add

NOTES = Path(__file__).parent / "notes"

@add
class Noting(Learner):
    name = "noting"
    about = "notes when it begins and ends a seed, waits where it is held, fails with seed 9"

    def start_task(self, number):
        seed = self.scenario.seed
        words = "failed" if seed == 9 else "end" if number else "begin"
        (NOTES / f"{words}-{seed}-{os.getpid()}-{time.monotonic_ns()}").touch()
        if seed == 9:
            raise ArithmeticError("seed 9 is no good")
        while not number and (NOTES / f"wait-{seed}").exists():
            time.sleep(0.02)
"""


class Notes:
    """The file with the method, and what it notes."""

    def __init__(self, folder: Path) -> None:
        self.file, self.folder = folder / "own.py", folder / "notes"
        self.file.write_text(OWN)
        self.folder.mkdir()

    def counts(self, what: str) -> dict[int, int]:
        """How often each seed did something."""
        return dict(Counter(int(path.name.split("-")[1]) for path in self.folder.glob(f"{what}-*")))

    def process(self, what: str) -> int:
        """The process that noted something, the only one."""
        (path,) = self.folder.glob(f"{what}-*-*")
        return int(path.name.split("-")[2])

    def hold(self, seed: int) -> Path:
        """Let a seed wait until the file is removed."""
        path = self.folder / f"wait-{seed}"
        path.touch()
        return path


@contextmanager
def noting(folder: Path) -> Iterator[Notes]:
    """The method is known inside only."""
    notes, before = Notes(folder), dict(METHODS)
    import_methods(notes.file)
    yield notes
    METHODS.clear()
    METHODS.update(before)


def wanted(methods: list[str], seeds: list[int]) -> Experiment:
    """An experiment whose data goes along to other processes."""
    settings = {"*": {**FAST, "steps": 4, "check_every": 4}}
    return Experiment("disjoint-mnist", methods, seeds, settings=settings, data=blobs())


def until(what: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
