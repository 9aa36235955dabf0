"""The page of the comparison: Markdown between two markers, and one figure per benchmark.

What is written by hand around the markers stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conceptors._internal.files import write_atomically
from conceptors.experiments.benchmarks import CHOSEN, METHODS_COMPARED, OURS, UNCHOSEN
from conceptors.experiments.compare import needs_task_label
from conceptors.report import charts
from conceptors.report.measures import CEILINGS
from conceptors.report.shortfalls import shortfalls
from conceptors.report.standings import (
    Standing,
    Table,
    marked,
    read_tables,
    trains_network,
    verdict,
)
from conceptors.report.text import MISSING, duration, in_markdown, number, spread
from conceptors.report.theme import Drawing, draw, method_looks

BEGIN = "<!-- made by `conceptors all --page`: what is between these two lines is written anew -->"
END = "<!-- end of what is made -->"
FIGURES = Path("assets") / "comparison"
_DRAWN = 15.0  # points below the best: further down a method is named, but not drawn
_ACROSS = 5  # benchmarks side by side
_NEW = f"# Comparison\n\n{BEGIN}\n{END}\n"
_MARKS = """\
\\* has parts of its own for each task, or is told the task when tested. † trains no network. ‡ sees
all tasks at once. Accuracies are in percent of all tasks' test samples after the last
task, mean ± standard deviation over seeds (*failed*: diverged with these settings); the highest
without \\* and ‡ is in bold."""
_COLUMNS = """\
*Forgetting* is how far a task is below its best, mean over tasks; *numbers* are those that a method
keeps from task to task beyond the network; *seconds* are those of a seed, tests included, with all
seeds at once on a GPU, missing where other work ran beside it (`--shared`); *step* is the time of a
training step in the second to fourth task, each of few steps, as a multiple of plain SGD's,
measured in turns (`conceptors all --steps`). *Ahead* is a higher mean with standard errors that do
not overlap; published means count as they are."""


def write(folder: Path, page: Path, rows: Sequence[str] = ()) -> list[Path]:
    """Make the page and its figures from `folder/BENCHMARK/results.json`; the files written.

    Raises:
        ValueError: damaged results, or a page without the markers.
    """
    tables = read_tables(folder, rows)
    held = page.read_text("utf-8") if page.exists() else _NEW
    text = between(held, body(tables), page)
    page.parent.mkdir(parents=True, exist_ok=True)
    figures = []
    for table in tables:
        path = page.parent / FIGURES / f"{table.benchmark.name}.svg"
        if table.reached:
            figures.append(draw(figure(table), path))
        else:
            path.unlink(missing_ok=True)
    write_atomically(page, text.encode())
    return [page, *figures]


def between(held: str, made: str, page: Path, begin: str = BEGIN, end: str = END) -> str:
    """`held` with `made` between the markers."""
    if held.count(begin) != 1 or held.count(end) != 1 or held.index(begin) > held.index(end):
        raise ValueError(
            f"{page} must have these two lines once, in this order, and what is made goes between "
            f"them: {begin} and {end}"
        )
    before, rest = held.split(begin)
    return f"{before}{begin}\n\n{made}\n{end}{rest.split(end)[1]}"


def body(tables: list[Table]) -> str:
    """Everything that is made, as Markdown."""
    parts = [overview(tables), _MARKS, "## Where ours is not ahead", shortfalls(tables)]
    parts += ["## Benchmark by benchmark", _COLUMNS]
    for table in tables:
        parts += section(table)
    return "\n\n".join(parts) + "\n"


# --- all benchmarks ----------------------------------------------------------------------


def overview(tables: list[Table]) -> str:
    """Methods x benchmarks, as many tables as it takes to read them without scrolling."""
    parts = [tables[k : k + _ACROSS] for k in range(0, len(tables), _ACROSS)]
    return "\n\n".join(_side_by_side(part) for part in parts)


def _side_by_side(tables: list[Table]) -> str:
    found = {one.method: one.name for table in tables for one in table.reached}
    found |= {method: _name(method) for table in tables for method in table.failed}
    order = [m for m in METHODS_COMPARED if m in found]
    order += [m for m in found if m not in order]
    head = ["", *(f"[{t.benchmark.name}](#{t.benchmark.name})" for t in tables)]
    rows = [
        [in_markdown(found[method]), *(_overall(table, method) for table in tables)]
        for method in order
    ]
    rows.append(["*published, best*", *(_best_published(table, False) for table in tables)])
    rows.append(["*the same with \\**", *(_best_published(table, True) for table in tables)])
    rows.append(["*our goal*", *(str(table.benchmark.goal) for table in tables)])
    rows.append(["*reached*", *(goal_met(table) for table in tables)])
    untuned = [_untuned(table) for table in tables]
    if set(untuned) != {MISSING}:
        rows.append(["*nothing chosen: above the best chosen*", *untuned])
    return markdown(head, rows)


def _overall(table: Table, method: str) -> str:
    one = table.of(method)
    if one is None:
        return f"{table.failed[method]} failed" if table.failed.get(method) else MISSING
    text = spread(one.mean, one.sd)
    if _is_best(table, one):
        text = f"**{text}**"
    return text if one.n == table.benchmark.seeds else f"{text} (n = {_seeds(one)})"


def _name(method: str) -> str:
    """Of a method without any standing."""
    return marked(method, needs_task_label(method), trains_network(method))


def _seeds(one: Standing) -> str:
    return f"{one.n}, {one.failed} failed" if one.failed else str(one.n)


def _untuned(table: Table) -> str:
    """How far the best with apertures from the data is above the best with chosen ones."""
    found, chosen = (
        [one for method in methods if (one := table.of(method)) is not None]
        for methods in (UNCHOSEN, CHOSEN)
    )
    if not found or not chosen:
        return MISSING
    best, most = (max(some, key=lambda one: one.mean) for some in (found, chosen))
    return f"{number(best.mean - most.mean, signed=True)} ({best.method})"


def _is_best(table: Table, one: Standing) -> bool:
    plain = [s.mean for s in table.reached if not s.label and s.method not in CEILINGS]
    return one.mean == max(plain, default=None) and not one.label and one.method not in CEILINGS


def _best_published(table: Table, label: bool) -> str:
    found = [one for one in table.published if one.label == label]
    if not found:
        return MISSING
    best = max(found, key=lambda one: one.mean)
    return f"{number(best.mean)} ({in_markdown(best.name)})"


def goal_met(table: Table) -> str:
    missed = table.missed()
    return MISSING if missed is None else "no" if missed else "yes"


# --- one benchmark -----------------------------------------------------------------------


def section(table: Table) -> list[str]:
    """Heading, what it is, figure and table of one benchmark."""
    name = table.benchmark.name
    parts = [f"### {name}", f"{table.benchmark}. Goal: {table.benchmark.goal}. {_outcome(table)}"]
    if table.reached:
        left_out = _not_drawn(table)
        also = f" Further down, not drawn: {', '.join(left_out)}." if left_out else ""
        goal = ", dashed: our goal" if table.benchmark.goal.accuracy is not None else ""
        parts.append(f"![Accuracy of every method on {name}]({FIGURES.as_posix()}/{name}.svg)")
        parts.append(f"*Dots: seeds, strokes: means, diamonds: published{goal}.*{also}")
    if table.reached or table.published:
        parts.append(_own_table(table))
    return parts + ([f"Made by {table.made}."] if table.made else [])


def _outcome(table: Table) -> str:
    missed = table.missed()
    if table.own is None:
        return "Not run yet."
    if missed is None:
        return "Whether it is reached cannot be said from these runs."
    return f"It is not reached: {'; '.join(missed)}." if missed else "It is reached."


def _own_table(table: Table) -> str:
    head = ["", "accuracy", "seeds", "forgetting", "backward transfer", "numbers", "seconds"]
    head += ["step", f"{table.own.method if table.own else OURS[0]} is"]
    rows = [
        [
            in_markdown(one.name),
            spread(one.mean, one.sd),
            _seeds(one),
            number(one.forgetting),
            number(one.transfer, signed=True),
            MISSING if one.stored is None else f"{one.stored:,.0f}",
            duration(one.seconds),
            MISSING if one.step is None else f"{one.step:.2f} ×",
            _verdict(table, one),
        ]
        for one in table.reached
    ]
    rows += [
        [in_markdown(_name(method)), MISSING, f"0, {count} failed", *([MISSING] * 5), ""]
        for method, count in table.failed.items()
    ]
    rows += [
        [
            f"{in_markdown(one.name)}, {_source(one)}",
            spread(one.mean, one.sd),
            *([MISSING] * 6),
            _verdict(table, one),
        ]
        for one in sorted(table.published, key=lambda one: -one.mean)
    ]
    return markdown(head, rows)


def _verdict(table: Table, one: Standing) -> str:
    return verdict(table.own, one) if table.own is not None and one.rival else ""


def _source(one: Standing) -> str:
    return "the paper" if one.source == "paper" else one.source


# --- figures -----------------------------------------------------------------------------


def figure(table: Table) -> Drawing:
    """Every seed of every method near the best, published means below, and our goal."""
    near = [one for one in table.reached if _near(table, one)]
    names = {one.method: one.name for one in near}
    published = {one.name: one.mean for one in table.published if _near(table, one)}
    known = list(dict.fromkeys([*METHODS_COMPARED, *names]))  # a method looks the same everywhere
    by_method = dict(zip(known, method_looks(known)))
    looks = {shown: by_method[method] for method, shown in names.items()}
    return charts.seeds(
        {shown: table.seeds[method] for method, shown in names.items()},
        published,
        looks,
        f"accuracy in percent, {table.benchmark.name}",
        table.benchmark.goal.accuracy,
    )


def _near(table: Table, one: Standing) -> bool:
    best = max(s.mean for s in table.reached)
    return one.mean >= best - _DRAWN


def _not_drawn(table: Table) -> list[str]:
    return [
        f"{in_markdown(one.name)} ({number(one.mean)})"
        for one in table.reached
        if not _near(table, one)
    ]


# --- text --------------------------------------------------------------------------------


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
