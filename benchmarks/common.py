"""Shared by all benchmarks: a training loop, a table format, and options."""

from __future__ import annotations

import argparse
import csv
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Row = dict[str, Any]


# --- training -----------------------------------------------------------------------------


def train(
    optimizer: Optimizer,
    loss: Callable[[Tensor], Tensor],
    samples: int,
    *,
    epochs: int,
    batch: int,
    schedule: LRScheduler | None = None,
    after_backward: Callable[[], None] | None = None,
) -> bool:
    """Minimise `loss(indices)` over shuffled indices of a task's samples.

    `after_backward` may change gradients in place before the optimizer sees them.

    Returns:
        Whether the loss stayed finite.
    """
    last = torch.zeros(())
    for _ in range(epochs):
        for indices in torch.randperm(samples).split(batch):
            optimizer.zero_grad()
            last = loss(indices)
            last.backward()
            if after_backward is not None:
                after_backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
    return math.isfinite(float(last.detach()))


# --- tables -------------------------------------------------------------------------------


class Table:
    """A CSV file with one row per run.

    `add` replaces the file atomically: a killed benchmark loses only its current run, and continues
    after the last row.

    >>> import tempfile
    >>> table = Table(Path(tempfile.mkdtemp()) / "runs.csv", ("method", "seed"))
    >>> table.add({"method": "sgd", "seed": 0, "accuracy": 48.3})
    >>> {"method": "sgd", "seed": 0} in Table(table.path, table.key)
    True
    """

    def __init__(self, path: Path, key: Sequence[str]) -> None:
        """Read the rows in `path`, if it exists. Rows with equal `key` columns are the same run.

        Raises:
            ValueError: the file lacks a key column or contains a run twice.
        """
        self.path, self.key = path, tuple(key)
        self.rows: list[Row] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                self.rows = list(reader)
                missing = set(self.key) - set(reader.fieldnames or ())
            if missing:
                raise ValueError(f"{path} has no column {sorted(missing)[0]!r}; pass another --out")
        self._keys = {self._key(row) for row in self.rows}
        if len(self._keys) != len(self.rows):
            raise ValueError(f"{path} contains a run twice; remove one of the two rows")

    def _key(self, row: Row) -> tuple[str, ...]:
        return tuple(str(row.get(name, "")) for name in self.key)

    def __contains__(self, row: Row) -> bool:
        return self._key(row) in self._keys

    def add(self, row: Row) -> None:
        """Append a run and write the file; an earlier row of the same run is replaced."""
        key = self._key(row)
        self.rows = [old for old in self.rows if self._key(old) != key] + [row]
        self._keys.add(key)
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.rows)
            os.chmod(name, 0o644)
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise

    def values(self, column: str, **where: Any) -> list[float]:
        """Return the numbers of a column in the rows with these values, without empty cells."""
        return [
            float(row[column])
            for row in self.rows
            if row.get(column) not in (None, "")
            and all(str(row.get(name, "")) == str(value) for name, value in where.items())
        ]


def mean_and_std(values: Sequence[float], digits: int = 2) -> str:
    """Format mean ± standard deviation over seeds.

    >>> mean_and_std([95.0, 96.0]), mean_and_std([95.0]), mean_and_std([])
    ('95.50 ± 0.71', '95.00', '–')
    """
    if not values:
        return "–"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table for the docs.

    >>> print(markdown(["method", "accuracy"], [["cab", "95.9"]]))
    | method | accuracy |
    | --- | --- |
    | cab | 95.9 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def numbers(values: Iterable[float]) -> str:
    """Format several numbers for one cell.

    >>> numbers([95.0, 96.125])
    '95 96.12'
    """
    return " ".join(f"{round(value, 2):g}" for value in values)


def words(settings: dict[str, Any]) -> str:
    """Format settings for one cell, as `--set` accepts them.

    >>> words({"rate": 1e-5, "hard": True, "hidden": "100,100"})
    'rate=1e-05 hard=true hidden=100,100'
    """
    return " ".join(f"{name}={_word(value)}" for name, value in settings.items())


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def tensors(state: Any) -> list[Tensor]:
    """Return the tensors at any depth of a state dict or a list.

    >>> tensors({"a": [torch.zeros(2)], "b": "text"})
    [tensor([0., 0.])]
    """
    if isinstance(state, Tensor):
        return [state]
    items = list(state.values()) if isinstance(state, dict) else state
    return [x for item in items for x in tensors(item)] if isinstance(items, (list, tuple)) else []


# --- machine and options ------------------------------------------------------------------


def find_device(name: str) -> torch.device:
    """Return the device; `auto` is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no GPU on this machine; pass --device cpu")
    return device


def environment(device: torch.device) -> Row:
    """Return the machine and versions of a run: the last columns of every table."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {"device": name, "torch": torch.__version__, "commit": _commit()}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else "CPU"


def _commit() -> str:
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    try:
        result = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return result.stdout.strip()


def options(description: str | None, out: str) -> argparse.ArgumentParser:
    """Create a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or auto (default: a GPU if there is one)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(out),
        help=f"CSV file to extend; runs in it are not repeated (default: {out})",
    )
    parser.add_argument("--seeds", type=int, help="seeds per method (default: as in the docs)")
    parser.add_argument(
        "--tiny", action="store_true", help="check that it runs: small networks, little data"
    )
    parser.add_argument(
        "--table", action="store_true", help="print the docs' tables from --out and exit"
    )
    return parser


def choices(parser: argparse.ArgumentParser, option: str, names: Iterable[str]) -> None:
    """Add an option that accepts several of these names (default: all)."""
    known = list(names)
    listed = f"any of: {', '.join(known)} (default: all)"
    parser.add_argument(
        option, nargs="+", choices=known, default=known, metavar="NAME", help=listed
    )


def say(text: str) -> None:
    """Progress goes to stderr, tables to stdout."""
    print(text, file=sys.stderr, flush=True)
