"""What a shield does where, as data and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from conceptors.layers.bare import is_bare
from conceptors.shield.blocks import Scan
from conceptors.shield.step.plan import StepPlan


class LayerRow(NamedTuple):
    """One layer, or a parameter that belongs to none.

    Attributes:
        layer: its name.
        done: what happens to its steps, in words.
        rank: directions that are claimed at all.
        dim: directions there are, including one per bias.
        quota: the share of the space that is claimed, in [0, 1].
        passing: the share of recent steps that was let through, None if unknown.
    """

    layer: str
    done: str
    rank: int
    dim: int
    quota: float
    passing: float | None


class Explanation(tuple[LayerRow, ...]):
    """Rows of `Shield.explain`; `str` and `print` make a table of them."""

    __slots__ = ()

    def __str__(self) -> str:
        head = ("layer", "done there", "rank", "quota", "passing")
        cells = [head, *(_cells(row) for row in self)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        lines = []
        for line in cells:
            left = [cell.ljust(width) for cell, width in zip(line[:2], widths)]
            right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:])]
            lines.append("  ".join([*left, *right]).rstrip())
        return "\n".join(lines)


def _cells(row: LayerRow) -> tuple[str, ...]:
    rank = f"{row.rank}/{row.dim}" if row.dim else ""
    quota = f"{row.quota:.1%}" if row.dim else ""
    passing = "" if row.passing is None else f"{row.passing:.1%}"
    return row.layer, row.done, rank, quota, passing


def explain(
    scan: Scan,
    ranks: Mapping[str, int],
    quotas: Mapping[str, float],
    plans: Iterable[StepPlan],
) -> Explanation:
    """A row for every layer, frozen parameter and parameter that cannot be shielded."""
    ways: dict[str, list[str]] = {}
    passing: dict[str, float] = {}
    for plan in plans:
        passing |= plan.passing.shares()
        for block in plan.blocks:
            words = ways.setdefault(block.name, [])
            words += [block.way.about] if block.way.about not in words else []
    rows = []
    for name, site in scan.sites.items():
        rank, dim = ranks.get(name, 0), site.size[1]
        done = ", ".join(ways.get(name, [])) or "no guarded optimizer steps it"
        if not rank:
            done = "nothing is claimed"
        elif is_bare(site.block) and quotas.get(name, 0.0) == 1.0:
            done = "held fixed: all of it is claimed"
        rows.append(LayerRow(name, done, rank, dim, quotas.get(name, 0.0), passing.get(name)))
    followers = scan.magnitudes
    rows += [
        LayerRow(n, "follows its direction, for its scale to stay", 0, 0, 1.0, None)
        for n in followers
    ]
    rows += [LayerRow(n, "held fixed after the first task", 0, 0, 1.0, None) for n in scan.frozen]
    left = [name for name in scan.unsupported if name not in scan.frozen]
    rows += [LayerRow(n, f"left alone: {scan.unsupported[n]}", 0, 0, 0.0, None) for n in left]
    return Explanation(rows)
