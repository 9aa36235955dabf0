"""Running benchmarks one after the other; what is finished is on disk and stays there."""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from conceptors._internal.files import write_atomically
from conceptors._internal.suggest import nearest
from conceptors.bench.ceilings import measure_ceilings
from conceptors.bench.measure import release
from conceptors.bench.registry import BENCHMARKS
from conceptors.bench.row import SIZES, Row, Size, UnfitError
from conceptors.bench.table import table
from conceptors.experiments import machine
from conceptors.experiments.results import readable

SCHEMA = 1


@dataclass
class Outcome:
    """All rows, and what could not be measured and why."""

    machine: dict[str, Any]
    command: str
    rows: list[Row] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Heading, table, and what is missing from it."""
        return f"{self._heading()}\n\n{self._below()}"

    def page(self) -> str:
        """The same in Markdown, without the curves, which are for a figure."""
        rows = [row for row in self.rows if row.what != "growth"]
        return f"```text\n{self._heading()}\n```\n\n{replace(self, rows=rows)._below()}\n"

    def _heading(self) -> str:
        at = self.machine
        gpu = f" (CUDA {at['cuda']}), {at['processor']}" if at["cuda"] else ""
        commit = f" ({at['commit']})" if at["commit"] else ""
        return (
            f"{at['device_name']}{gpu}, {at['cores']} cores, {at['threads']} threads\n"
            f"conceptors {at['conceptors']}{commit}, torch {at['torch']}, Python {at['python']}, "
            f"{at['platform']}\n{self.command}"
        )

    def _below(self) -> str:
        parts = [table(self.rows)]
        parts += [f"\nnot measured: {name}: {why}" for name, why in self.left_out.items()]
        parts += [f"\nFAILED: {name}: {why}" for name, why in self.failed.items()]
        return "\n".join(parts)


def choose(names: Sequence[str], device: torch.device) -> list[str]:
    """The benchmarks asked for; without names, all that are meant for the device.

    Raises:
        ValueError: an unknown name; the message tells the nearest one.
    """
    for name in names:
        if name not in BENCHMARKS:
            raise ValueError(f"unknown benchmark {name!r}{nearest(name, BENCHMARKS)}")
    if names:
        return list(dict.fromkeys(names))
    return [name for name, b in BENCHMARKS.items() if device.type in b.devices]


def find_device(name: str) -> torch.device:
    """As `conceptors run` finds it; ValueError unless it is one that benchmarks know."""
    device = machine.find_device(name)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"benchmarks run on cpu or cuda, not on {name!r}")
    return device


def run_suite(
    names: Sequence[str],
    size: Size,
    device: torch.device,
    *,
    folder: Path | None = None,
    command: str = "",
    progress: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Run benchmarks; one that fails is noted and the others go on.

    With a folder, results are written there after every benchmark, as JSON and as a table.
    """
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    chosen = choose(names, device)
    outcome = Outcome(machine.environment(device), command)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    for number, name in enumerate(chosen, 1):
        progress(f"{number}/{len(chosen)} {name}: {BENCHMARKS[name].about}")
        begun = time.perf_counter()
        try:
            more = {"folder": folder} if BENCHMARKS[name].keeps else {}
            outcome.rows += BENCHMARKS[name].run(size, device, **more)
        except UnfitError as error:
            outcome.left_out[name] = str(error)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            outcome.failed[name] = f"{type(error).__name__}: {error} ({place})"
        release(device)
        progress(f"{number}/{len(chosen)} {name}: {time.perf_counter() - begun:.1f} s")
        if folder is not None:
            _write(outcome, size, device, folder, started)
    return outcome


def _write(outcome: Outcome, size: Size, device: torch.device, folder: Path, started: str) -> None:
    results = {
        "schema": SCHEMA,
        "date": started,
        "command": outcome.command,
        "size": size,
        "machine": outcome.machine,
        "ceilings": vars(measure_ceilings(device, size)),
        "rows": [row.plain_dict() for row in outcome.rows],
        "failed": outcome.failed,
        "left_out": outcome.left_out,
    }
    name = outcome.machine["device_name"].lower() if device.type == "cuda" else "cpu"
    stem = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
    write_atomically(folder / f"{stem}.json", readable(results).encode())
    write_atomically(folder / f"{stem}.md", outcome.page().encode())


def read(path: Path) -> dict[str, Any]:
    """Results that a suite wrote.

    Raises:
        ValueError: not such a file.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no results of benchmarks ({error})") from error
    return found
