"""How a shield protects each layer, as data and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from conceptors.layers.bare import is_bare
from conceptors.shield.blocks import Scan
from conceptors.shield.guard import Guard


class LayerRow(NamedTuple):
    """One layer, or one parameter that belongs to no layer.

    Attributes:
        layer: the name of the layer or parameter.
        done: how its steps are treated, in words.
        rank: the number of protected directions.
        dim: the number of all directions, including one per bias.
        quota: the protected share of the input space, in [0, 1].
        passing: the share of recent gradients that was applied; None if unknown.
    """

    layer: str
    done: str
    rank: int
    dim: int
    quota: float
    passing: float | None


class Explanation(tuple[LayerRow, ...]):
    """The rows of `Shield.explain`; `str` and `print` format them as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        head = ("layer", "done", "rank", "quota", "passing")
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
    guards: Iterable[Guard],
) -> Explanation:
    """Return one row per layer, frozen parameter, and parameter that cannot be shielded."""
    ways: dict[str, list[str]] = {}
    passing: dict[str, float] = {}
    for guard in guards:
        passing |= guard.shares()
        for block in guard.plan.blocks:
            words = ways.setdefault(block.name, [])
            words += [block.about] if block.about not in words else []
    rows = []
    for name, site in scan.sites.items():
        rank, dim = ranks.get(name, 0), site.size[1]
        done = ", ".join(ways.get(name, [])) or "no guarded optimizer steps it"
        if not rank:
            done = "no protected directions"
        elif is_bare(site.block) and quotas.get(name, 0.0) == 1.0:
            done = "fixed: all of it is protected"
        rows.append(LayerRow(name, done, rank, dim, quotas.get(name, 0.0), passing.get(name)))
    follows = "follows its direction to preserve its scale"
    rows += [LayerRow(name, follows, 0, 0, 1.0, None) for name in scan.magnitudes]
    rows += [LayerRow(n, "fixed after the first task", 0, 0, 1.0, None) for n in scan.frozen]
    ignored = [name for name in scan.unsupported if name not in scan.frozen]
    rows += [LayerRow(n, f"not protected: {scan.unsupported[n]}", 0, 0, 0.0, None) for n in ignored]
    return Explanation(rows)
