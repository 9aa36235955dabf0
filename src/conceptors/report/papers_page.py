"""Relatives held to the figures of their own papers: a part of the page of the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conceptors._internal.files import write_atomically
from conceptors.experiments.protocols import CLOSE, PROTOCOLS, Protocol
from conceptors.experiments.results import read_results
from conceptors.report.standings import Table, table
from conceptors.report.standings_page import between, markdown
from conceptors.report.text import MISSING, in_markdown, number, spread

BEGIN = (
    "<!-- made by `conceptors all --published --page`: what is between these two lines is written "
    "anew -->"
)
END = "<!-- end of what is held to papers -->"
_HEAD = ["", "benchmark", "network", "published", "ours", "difference", f"within {CLOSE:g}"]
_HEAD += ["seeds", "backward transfer", "published"]
_NETWORKS = {"split-cifar100": "{}", "disjoint-mnist": "784-{}-10", "permuted-mnist": "784-{}-10"}


def write(folder: Path, page: Path) -> Path:
    """Make this part of the page from `folder/PROTOCOL/results.json`.

    Raises:
        ValueError: damaged results, or of other settings; a page without the markers.
    """
    tables = {name: read(folder, protocol) for name, protocol in PROTOCOLS.items()}
    text = between(page.read_text("utf-8"), body(tables), page, BEGIN, END)
    write_atomically(page, text.encode())
    return page


def read(folder: Path, protocol: Protocol) -> Table:
    """What was reached with a protocol, as far as it was run."""
    path = folder / protocol.name / "results.json"
    results = read_results(path, finished=False) if path.is_file() else None
    if results is not None and not results["runs"]:
        results = None  # all seeds failed
    for run in [] if results is None else results["runs"]:
        if other := _differing(run["config"], protocol):
            raise ValueError(
                f"{path} was run with other settings than the protocol's ({other}); move it away "
                f"and run: conceptors all --published --rows {protocol.name}"
            )
    return table(protocol.benchmark, results)


def _differing(config: dict[str, Any], protocol: Protocol) -> str:
    wanted = protocol.cell().settings or {}
    names = [name for name, value in wanted.items() if config.get(name) != value]
    return ", ".join(f"{name}={config.get(name)}, not {wanted[name]}" for name in names)


def body(tables: dict[str, Table]) -> str:
    """Everything that is made, as Markdown."""
    rows = [_row(PROTOCOLS[name], found) for name, found in tables.items()]
    parts = [markdown(_HEAD, rows), "\n".join(_missed(tables)), "\n".join(_unlike())]
    parts.append("\n".join(f"- Made by {found.made}." for found in tables.values() if found.made))
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(protocol: Protocol, found: Table) -> list[str]:
    one = found.of(protocol.published.method)
    published = protocol.published
    gap = None if one is None else one.mean - published.mean
    tasks = f"{protocol.scenario}, {protocol.tasks} tasks"
    return [
        in_markdown(published.method + "*" * published.label),
        tasks,
        _NETWORKS[protocol.scenario].format(protocol.network.replace(",", "-")),
        f"{spread(published.mean, published.std)} ({published.source})",
        MISSING if one is None else spread(one.mean, one.sd),
        number(gap, signed=True),
        _verdict(gap, None if one is None else one.n),
        MISSING if one is None else str(one.n),
        MISSING if one is None else number(one.transfer, signed=True),
        number(protocol.transfer, signed=True),
    ]


def _verdict(gap: float | None, seeds: int | None) -> str:
    """Whether the figure is reached; of one seed that is said, as it settles little."""
    if gap is None:
        return "not run yet"
    found = "above" if gap > CLOSE else "yes" if gap >= -CLOSE else "no"
    return found + (", by one seed" if seeds == 1 else "")


def _missed(tables: dict[str, Table]) -> list[str]:
    """Why figures are not as published, where that was found out."""
    lines = []
    for name, found in tables.items():
        protocol, one = PROTOCOLS[name], found.of(PROTOCOLS[name].published.method)
        if one is not None and abs(one.mean - protocol.published.mean) > CLOSE:
            why = protocol.finding or "Why is not known."
            gap = one.mean - protocol.published.mean
            side = "above" if gap > 0 else "below"
            lines.append(f"- `{name}` is {number(abs(gap))} {side} what is published. {why}")
    return lines


def _unlike() -> list[str]:
    """Where ours differs from what the authors ran, alike protocols together."""
    together: dict[str, list[str]] = {}
    for name, protocol in PROTOCOLS.items():
        for difference in protocol.unlike:
            together.setdefault(difference, []).append(f"`{name}`")
    lines = [f"- {text} ({', '.join(names)})" for text, names in together.items()]
    return ["Where these protocols differ from what the authors ran:", "", *lines]
