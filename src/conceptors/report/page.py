"""The page: one HTML file with everything inside, so that it opens from disk without a network."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from conceptors.experiments.results import check_results
from conceptors.report import measures, panels
from conceptors.report.measures import CEILINGS
from conceptors.report.settings import pairs, settings
from conceptors.report.summary import summary
from conceptors.report.text import clean, spread

RAW = "results.json"  # lies beside the page


def write(results: dict[str, Any], path: Path, pictures: Sequence[tuple[str, Path]]) -> Path:
    """The page at `path`, written whole or not at all."""
    html = render(results, pictures).encode("utf-8", "replace")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(html)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def render(results: dict[str, Any], pictures: Sequence[tuple[str, Path]] = ()) -> str:
    """The page as text."""
    check_results(results)
    env = Environment(
        loader=PackageLoader("conceptors.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    script = (files("conceptors.report") / "templates" / "page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    matrices, low = panels.matrix_panels(results)
    return env.get_template("page.html").render(
        style=Markup(env.get_template("page.css").render()),
        script=Markup(script),
        digest=digest,
        raw=RAW,
        title=results.get("title") or results["scenario"],
        facts=_facts(results),
        lede=_lede(results),
        command=re.split(r"\s+(?=--)", results.get("command") or "")
        if results.get("command")
        else None,
        summary=summary(results),
        curves=panels.accuracy_panel(results),
        matrices=matrices,
        low=f"{low:g}",
        quotas=panels.quota_panels(results),
        spectra=panels.spectra_panels(results),
        similarities=panels.similarity_panels(results),
        pictures=[(caption, _inline(file)) for caption, file in pictures],
        deviations=results.get("deviations") or [],
        settings=settings(results),
        environment=pairs(results["environment"]),
        tasks=results.get("task_names") or [],
        count=measures.task_count(results),
        several=len(measures.methods(results)) > 1,
        columns=_columns(results),
        sizes=_sizes(results),
    )


def _facts(results: dict[str, Any]) -> list[tuple[str, str]]:
    """What was run, in a few words."""
    facts = [
        ("Scenario", results["scenario"]),
        ("Tasks", str(measures.task_count(results))),
        ("Methods", str(len(measures.methods(results)))),
        ("Seeds", _sizes(results)),
    ]
    if results.get("preset"):
        facts.append(("Preset", results["preset"]))
    device = results["environment"].get("device")
    return [*facts, ("Device", str(device))] if device else facts


def _sizes(results: dict[str, Any]) -> str:
    """How many seeds a method has."""
    found = {len(measures.runs_of(results, m)) for m in measures.methods(results)}
    low, high = min(found), max(found)
    return str(low) if low == high else f"{low} to {high}"


def _lede(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(before, name, after) parts of the sentence that says how it ended."""
    given, tasks = results["summary"], measures.task_count(results)
    names = sorted(given, key=lambda m: -given[m]["mean"])
    rivals = [m for m in names if m not in CEILINGS] or names

    def value(m: str) -> str:
        entry = given[m]
        sd = entry.get("std") if entry.get("n") != 1 else None
        return f"{spread(entry['mean'], sd)} %".replace(" ", "\u00a0")  # never broken over lines

    several = tasks > 1
    when = f"After {tasks} tasks, one after the other, " if several else "After the task, "
    whole = " on average over all tasks" if several else ""
    parts = [(when, rivals[0], f" ends at {value(rivals[0])}{whole}")]
    if len(rivals) > 1:
        parts.append((", ", rivals[-1], f" at {value(rivals[-1])}"))
    ceiling = next((m for m in names if m in CEILINGS), None)
    if ceiling is not None and ceiling not in rivals:
        why = ", which sees all tasks at once," if several else ""
        parts.append(("; ", ceiling, f" training{why} at {value(ceiling)}"))
    return parts


def _columns(results: dict[str, Any]) -> int:
    """How many accuracy matrices to show side by side."""
    n = len(measures.methods(results))
    choices = (4, 3) if measures.task_count(results) <= 6 else (3, 2)
    return min(choices, key=lambda columns: -n % columns)  # the fewest gaps in the last row


def _inline(file: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(Path(file).read_bytes()).decode("ascii")
