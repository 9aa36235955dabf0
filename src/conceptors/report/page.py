"""The page: one HTML file with everything inside, so that it opens from disk without a network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from conceptors.experiments.results import check_results
from conceptors.report import measures
from conceptors.report.measures import CEILINGS
from conceptors.report.sections import Section, sections, seeds_panel
from conceptors.report.settings import Settings, pairs, settings
from conceptors.report.summary import summary
from conceptors.report.text import clean, labels, spread
from conceptors.report.theme import DARK, LIGHT, page_svg, write_file

RAW = "results.json"  # lies beside the page
Pictures = Sequence[tuple[str, Path]]


@dataclass(frozen=True)
class Part:
    """What the page says about one set of results; `anchor` keeps ids apart."""

    anchor: str
    name: str
    link: str
    title: str
    command: list[str]
    lede: list[tuple[str, str, str]]
    facts: list[tuple[str, str]]
    sections: list[Section]
    pictures: list[tuple[str, str]]
    deviations: list[str]
    settings: Settings
    environment: list[tuple[str, str]]
    tasks: list[str]


def write(
    found: Mapping[str, dict[str, Any]],
    path: Path,
    pictures: Pictures = (),
    names: Sequence[str] = ("",),
) -> Path:
    """The page of the results at these addresses, written whole or not at all."""
    return write_file(path, render(found, pictures, names).encode("utf-8", "replace"))


def render(
    found: Mapping[str, dict[str, Any]], pictures: Pictures = (), names: Sequence[str] = ("",)
) -> str:
    """The page as text; `found` are results by the address of their file, `names` their names."""
    for results in found.values():
        check_results(results)
    several = len(found) > 1
    names = labels(names) if several else [""]
    named = dict(zip(names, found.values()))
    parts = [
        _part(results, link, name, f"r{k + 1}-" if several else "", () if several else pictures)
        for k, (name, link, results) in enumerate(zip(names, found, found.values()))
    ]
    return fill(
        "page.html",
        first="summary",
        title=", ".join(names) if several else parts[0].title,
        parts=parts,
        several=several,
        summary=summary(named),
        seeds=seeds_panel(named) if several else None,
    )


def fill(template: str, *scripts: str, **values: Any) -> str:
    """A page from its template: with the style, the scripts that its policy allows, and charts.

    `scripts` are files beside the template that the page needs more than others do.
    """
    env = Environment(
        loader=PackageLoader("conceptors.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    folder = files("conceptors.report") / "templates"
    script = "\n".join((folder / name).read_text("utf-8") for name in ("page.js", *scripts))
    return env.get_template(template).render(
        style=Markup(env.get_template("page.css").render(light=LIGHT, dark_colours=DARK)),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        draw=page_svg,
        **values,
    )


def _part(results: dict[str, Any], link: str, name: str, anchor: str, pictures: Pictures) -> Part:
    command = results.get("command")
    return Part(
        anchor=anchor,
        name=name,
        link=quote(link),
        title=results.get("title") or results["scenario"],
        command=re.split(r"\s+(?=--)", command) if command else [],
        lede=_lede(results),
        facts=_facts(results),
        sections=sections(results),
        pictures=[(caption, _inline(file)) for caption, file in pictures],
        deviations=results.get("deviations") or [],
        settings=settings(results),
        environment=pairs(results["environment"]),
        tasks=measures.task_names(results) if results.get("task_names") else [],
    )


def _facts(results: dict[str, Any]) -> list[tuple[str, str]]:
    """What was run, in a few words."""
    names = measures.methods(results)
    seeds = sorted({len(measures.runs_of(results, m)) for m in names})
    facts = [
        ("Scenario", results["scenario"]),
        ("Tasks", str(measures.task_count(results))),
        ("Methods", str(len(names))),
        ("Seeds", " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))),
    ]
    if results.get("preset"):
        facts.append(("Preset", results["preset"]))
    if failed := results.get("failed"):
        facts.append(("Failed", ", ".join(f"{f['method']} seed {f['seed']}" for f in failed)))
    device = results["environment"].get("device")
    return [*facts, ("Device", str(device))] if device else facts


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
    whole = " on the test images of all tasks" if several else ""
    parts = [(when, rivals[0], f" ends at {value(rivals[0])}{whole}")]
    if len(rivals) > 1:
        parts.append((", ", rivals[-1], f" at {value(rivals[-1])}"))
    ceiling = next((m for m in names if m in CEILINGS), None)
    if ceiling is not None and ceiling not in rivals:
        why = ", which sees all tasks at once," if several else ""
        parts.append(("; ", ceiling, f" training{why} at {value(ceiling)}"))
    return parts


def _inline(file: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(Path(file).read_bytes()).decode("ascii")
