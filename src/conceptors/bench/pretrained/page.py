"""The tables of docs/pretrained.md, from results.json alone."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

from conceptors._internal.files import write_atomically
from conceptors.bench.pretrained.cells import COLUMNS, final, forgetting
from conceptors.bench.pretrained.registry import METHODS, ROWS
from conceptors.bench.pretrained.work import Results

BEGIN = "<!-- made by `experiments/pretrained.py`: written anew up to the next such line -->"
END = "<!-- end of what is made -->"
NOT_RUN = "not run"
_TARGETS = {"one": 96.5, "known": 97.0}  # percent
_LEAST_KEPT = 0.5  # forgetting with the domain known, points at most


def write(results: Results, page: Path) -> None:
    """The page with tables of these results.

    Raises:
        ValueError: the page has no place for them.
    """
    held = page.read_text("utf-8")
    if held.count(BEGIN) != 1 or held.count(END) != 1 or held.index(BEGIN) > held.index(END):
        raise ValueError(f"{page} needs these two lines once, in this order: {BEGIN} and {END}")
    before, rest = held.split(BEGIN)
    made = f"{before}{BEGIN}\n\n{tables(results)}\n{END}{rest.split(END)[1]}"
    write_atomically(page, made.encode())


def tables(results: Results) -> str:
    if not results["runs"] and not results["trials"]:
        return "Not run yet; the command below makes the tables.\n"
    return "\n".join([_main(results), _targets(results), _settings(results), _made_on(results)])


def _main(results: Results) -> str:
    head = ["method", "seeds", "one head", "forgets", "domain known", "forgets"]
    head += ["s per domain", "× plain", "peak GPU, MiB", "stored numbers"]
    rows = []
    for row in ROWS:
        cells = [row.about, str(len(of_column(results, row.name, "one")))]
        for column in COLUMNS:
            cells += _accuracy(of_column(results, row.name, column))
        timing = results["timing"].get(row.name, {})
        cells += [
            _number(timing.get("seconds"), ".2f"),
            _number(timing.get("ratio"), ".2f"),
            _number(timing.get("memory_mib"), ",.0f"),
            _number(_stored(results, row.name), ",.0f"),
        ]
        if row.at_once:
            for place in (3, 5, 6, 7, 8):
                cells[place] = "–"  # it knows no domains
        rows.append(cells)
    return _table(head, rows)


def of_column(results: Results, method: str, column: str) -> list[Any]:
    """The runs on test sentences with the settings chosen for this column."""
    settings = results["chosen"].get(method, {}).get(column)
    return [
        {**one, "rows": one[column]}
        for one in results["runs"]
        if one["method"] == method and one["settings"] == settings
    ]


def _accuracy(runs: list[Any]) -> list[str]:
    if not runs:
        return [NOT_RUN, NOT_RUN]
    lost = [value for one in runs if (value := forgetting(one["rows"])) is not None]
    return [_spread([final(one["rows"]) for one in runs]), _spread(lost)]


def _stored(results: Results, method: str) -> float | None:
    found = [one["stored"] for column in COLUMNS for one in of_column(results, method, column)]
    return max(found) if found else None


def _targets(results: Results) -> str:
    ours = ("shield", "readout", "shield + readout")
    best = {}
    for name in ours:
        for column in COLUMNS:
            runs = of_column(results, name, column)
            if runs:
                best[name, column] = mean(final(one["rows"]) for one in runs)
    lines = ["| target | reached |", "|---|---|"]
    reached = NOT_RUN
    if ("shield", "known") in best:
        right = best["shield", "known"]
        lost = mean(forgetting(one["rows"]) or 0.0 for one in of_column(results, "shield", "known"))
        met = right >= _TARGETS["known"] and lost <= _LEAST_KEPT
        reached = f"{right:.2f}, forgets {lost:.2f}: {_word(met)}"
    lines.append(f"| shield, domain known: 97.0, forgets at most 0.5 | {reached} |")
    one = {name: value for (name, column), value in best.items() if column == "one"}
    reached = NOT_RUN
    if one:
        name = max(one, key=lambda key: one[key])
        peers = [
            mean(final(run["rows"]) for run in runs)
            for row in ROWS
            if row.name not in ours and not row.at_once
            if (runs := of_column(results, row.name, "one"))
        ]
        met = one[name] >= _TARGETS["one"] and all(one[name] > peer for peer in peers)
        reached = f"{one[name]:.2f} ({name}): {_word(met)}"
    lines.append(f"| one head, the best of ours: 96.5, ahead of every peer | {reached} |")
    return "\n".join(lines) + "\n"


def _settings(results: Results) -> str:
    """What was chosen, and how much it reached on validation sentences."""
    rows = []
    for name in METHODS:
        for column in COLUMNS:
            settings = results["chosen"].get(name, {}).get(column)
            tried = [one for one in results["trials"] if one["method"] == name]
            own = [final(one[column]) for one in tried if one["settings"] == settings]
            told = ", ".join(f"{key} {value}" for key, value in (settings or {}).items())
            count = len({str(one["settings"]) for one in tried})
            cells = [name, {"one": "one head", "known": "domain known"}[column]]
            cells += [told or NOT_RUN, str(count), f"{mean(own):.2f}" if own else NOT_RUN]
            rows.append(cells)
    return _table(["method", "for", "settings", "tried", "validation"], rows)


def _made_on(results: Results) -> str:
    about = results.get("environment")
    if not about:
        return ""
    versions = ", ".join(
        f"{name} {about[name]}" for name in ("torch", "transformers", "peft") if about.get(name)
    )
    if about.get("encoder"):
        versions += f", the encoder's file in {about['encoder']}"
    commit = f", commit {about['commit']}" if about["commit"] else ""
    return f"Made on {about['device_name']} with {versions}{commit}.\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _number(value: float | None, form: str) -> str:
    return NOT_RUN if value is None else format(value, form)


def _spread(values: list[float]) -> str:
    if not values:
        return NOT_RUN
    return f"{mean(values):.2f} ± {stdev(values) if len(values) > 1 else 0.0:.2f}"


def _word(met: bool) -> str:
    return "met" if met else "**missed**"
