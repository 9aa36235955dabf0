"""Many cells: side by side on a GPU, one after the other else; what is done is kept at once."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator
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
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with context.Pool(min(jobs, max(1, len(cells)))) as pool:
        waiting = iter(cells)
        first = itertools.islice(waiting, jobs)
        under_way = [pool.apply_async(attempt, (cell,)) for cell in first]
        while under_way:
            ready = [one for one in under_way if one.ready()]
            under_way = [one for one in under_way if one not in ready]
            for one in ready:
                if time.monotonic() < until and (another := next(waiting, None)):
                    under_way.append(pool.apply_async(attempt, (another,)))
                yield one.get()
            time.sleep(0.05)


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
