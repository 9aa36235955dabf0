"""Many cells: side by side on a GPU, one after the other else; what is done is kept at once."""

from __future__ import annotations

import json
import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from conceptors._internal.files import write_atomically
from conceptors.bench.pretrained.cells import COLUMNS, Cell, final, run
from conceptors.bench.pretrained.stream import Size

Results = dict[str, Any]


def load(path: Path, size: Size) -> Results:
    """What was measured so far.

    Raises:
        ValueError: the file is damaged, not one of ours, or of another size; says what to do.
    """
    empty: Results = {"schema": 1, "size": list(size)}
    empty |= {"trials": [], "chosen": {}, "runs": [], "timing": {}}
    if not path.exists():
        return empty
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error!s:.80}); move it away to start anew") from None
    if not isinstance(found, dict) or found.get("schema") != 1 or not found.keys() >= empty.keys():
        raise ValueError(f"{path} is not of this script (no schema 1); name another folder")
    if found["size"] != list(size):
        raise ValueError(
            f"{path} is about {found['size']} domains and sentences, not {list(size)}; name "
            f"another folder"
        )
    return found


def save(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())


def find(runs: list[Results], cell: Cell) -> Results | None:
    """The run of a cell, if it is there."""
    key = cell.key()
    return next((one for one in runs if all(one[name] == key[name] for name in key)), None)


def work(
    cells: list[Cell],
    runs: list[Results],
    keep: Callable[[], None],
    *,
    jobs: int,
    until: float,
    say: Callable[[str], None],
) -> int:
    """Run the cells that `runs` does not have; each is added and kept as soon as it is there.

    None is begun after `until` (of `time.monotonic`); those that run by then are finished. Returns
    how many failed: one that fails is told of, and does not stop the others.
    """
    failed = 0
    left = [cell for cell in _once(cells) if find(runs, cell) is None]
    begun = time.monotonic()
    for number, found in enumerate(_results(left, jobs, until), 1):
        failed += "error" in found
        if "error" not in found:
            runs.append(found)
            keep()
        say(f"{number} of {len(left)}, {time.monotonic() - begun:.0f} s: {tell(found)}")
    return failed


def attempt(cell: Cell) -> Results:
    """What a cell gives, or its error."""
    try:
        return run(cell)
    except Exception:  # whatever it is, hours of other runs must not be lost with it
        return {**cell.key(), "error": traceback.format_exc()}


def _results(cells: list[Cell], jobs: int, until: float) -> Iterator[Results]:
    if jobs == 1:
        for cell in cells:
            if time.monotonic() >= until:
                return
            yield attempt(cell)
        return
    waiting = deque(cells)
    while waiting and time.monotonic() < until:
        yield from _in_processes(waiting, jobs, until)


def _in_processes(waiting: deque[Cell], jobs: int, until: float) -> Iterator[Results]:
    """Until all is done, or a process dies: then those under way have failed."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    under_way: dict[Future[Results], Cell] = {}
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        whole = True
        while True:
            while whole and waiting and len(under_way) < jobs and time.monotonic() < until:
                try:
                    under_way[pool.submit(attempt, waiting[0])] = waiting[0]
                    waiting.popleft()
                except BrokenProcessPool:
                    whole = False
            if not under_way:
                return
            for one in wait(under_way, return_when=FIRST_COMPLETED).done:
                cell = under_way.pop(one)
                try:
                    yield one.result()
                except BrokenProcessPool:
                    whole = False
                    why = "a process was killed, perhaps for want of memory; try fewer --jobs"
                    yield {**cell.key(), "error": why}


def _once(cells: list[Cell]) -> list[Cell]:
    kept: list[Cell] = []
    for cell in cells:
        if cell not in kept:
            kept.append(cell)
    return kept


def tell(found: Results) -> str:
    """A run in one line."""
    if "error" in found:
        return f"{found['method']} FAILED with {found['settings']}\n{found['error']}"
    scores = ", ".join(f"{column} {final(found[column]):.2f}" for column in COLUMNS)
    chosen = ", ".join(f"{key} {value}" for key, value in found["settings"].items())
    where = f"seed {found['seed']}, {found['part']}, {found['seconds']} s"
    return f"{found['method']} ({chosen}): {scores} ({where})"
