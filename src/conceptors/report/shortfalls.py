"""Where ours is not ahead, in words made from the numbers."""

from __future__ import annotations

from conceptors.report.standings import Standing, Table
from conceptors.report.text import in_markdown, number, spread


def shortfalls(tables: list[Table]) -> str:
    """One item per benchmark that leaves something to wish for, then those that leave nothing."""
    items: list[str] = []
    fine: dict[str, list[str]] = {}
    waiting = []
    for table in tables:
        name = f"`{table.benchmark.name}`"
        if table.own is None:
            waiting.append(name)
        elif said := _said(table, table.own):
            items.append(f"- {name}: {' '.join(said)}")
        else:
            fine.setdefault(_ahead_of(table), []).append(name)
    for whom, names in fine.items():
        items.append(f"- {whom}, and the goal is reached: {', '.join(names)}.")
    if waiting:
        items.append(f"- Ours was not run yet: {', '.join(waiting)}.")
    return "\n".join(items)


def _ahead_of(table: Table) -> str:
    if not table.rivals:
        return "Nothing else was run or published"
    if all(other.n is None for other in table.rivals):
        return "Ahead of all that is published, nothing else was run"
    return "Ahead of all others"


def _said(table: Table, own: Standing) -> list[str]:
    """Sentences about one benchmark; none if ours is ahead and the goal is reached."""
    found = [_behind(own, other, table.benchmark.tasks) for other in table.against("behind")]
    found += [_level(own, other) for other in table.against("level")]
    if unclear := [_named(other) for other in table.against("unclear")]:
        found.append(f"A single seed says nothing about {', '.join(unclear)}.")
    missed = table.missed()
    if missed is None:
        found.append("Whether the goal is reached cannot be said from these runs.")
    elif missed:
        found.append(f"Of the goal, {' and '.join(missed)}.")
    planned = table.benchmark.seeds
    seeds = "" if own.n == planned else f" with {own.n} of {planned} seeds"
    return [f"{own.method} has {spread(own.mean, own.sd)}{seeds}.", *found] if found else []


def _behind(own: Standing, other: Standing, tasks: int) -> str:
    """By how much, and whether that is learned less or forgotten more.

    With tasks of equal size the final accuracy is that right after learning, plus backward transfer
    times (tasks - 1) / tasks.
    """
    by = f"It is {number(other.mean - own.mean)} behind {_named(other)}"
    if own.learned is None or other.learned is None:
        return f"{by}."
    if own.transfer is None or other.transfer is None:
        return f"{by}."
    learning = other.learned - own.learned
    forgetting = (other.transfer - own.transfer) * (tasks - 1) / tasks
    mostly = "it learns tasks less well" if learning > forgetting else "it forgets more"
    return (
        f"{by}, mostly because {mostly}: right after a task it has {number(own.learned)} and "
        f"{in_markdown(other.name)} {number(other.learned)}, and later tasks change that by "
        f"{number(own.transfer, signed=True)} and {number(other.transfer, signed=True)}."
    )


def _level(own: Standing, other: Standing) -> str:
    apart = number(own.mean - other.mean, signed=True)
    errors = f"errors {number(own.error)} and {number(other.error)}"
    if other.n is None:
        errors = f"error {number(own.error)}"
    return f"It is level with {_named(other)}: {apart}, standard {errors}."


def _named(other: Standing) -> str:
    name = in_markdown(other.name)
    return f"{name} as published ({number(other.mean)})" if other.n is None else name
