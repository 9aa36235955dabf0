"""How a shield protects each layer, as a table."""

import re
from collections.abc import Collection, Mapping
from statistics import fmean
from typing import NamedTuple

import torch

from conceptors.layers.bare import is_bare
from conceptors.shield.blocks import Scan
from conceptors.shield.projection import Claim

_ROUNDING = torch.finfo(torch.float32).eps  # smaller singular values have no effect
_LONG = 40  # the most rows that are printed one by one
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # of a block, in a layer's name


class LayerRow(NamedTuple):
    """One layer, or one parameter that belongs to no layer.

    Attributes:
        layer: the name of the layer or parameter.
        done: how its steps are treated, in words.
        rank: the number of protected directions.
        dim: the number of all directions, including one per bias.
        quota: the protected share of the input space, from 0 to 1.
        passing: the share of recent gradients that was applied; None if unknown.
    """

    layer: str
    done: str
    rank: int
    dim: int
    quota: float
    passing: float | None


class Explanation(tuple[LayerRow, ...]):
    """The rows of `Shield.explain`; `str` and `print` format them as a table.

    In the table of more than 40 rows, equal layers of all blocks of a model share one line, with
    means and, in brackets, the smallest and the largest value. The tuple contains every row.
    """

    def __str__(self) -> str:
        groups: dict[tuple[str, str, int], list[LayerRow]] = {}
        for row in self:
            name = _NUMBER.sub("*", row.layer) if len(self) > _LONG else row.layer
            groups.setdefault((name, row.done, row.dim), []).append(row)
        cells = [("layer", "done", "rank", "quota", "passing")]
        for (name, done, dim), rows in groups.items():
            layer = rows[0].layer if len(rows) == 1 else f"{name} ({len(rows)})"
            rank = f"{round(fmean(row.rank for row in rows))}/{dim}" if dim else ""
            quota = _percent([row.quota for row in rows if dim])
            passing = _percent([row.passing for row in rows if row.passing is not None])
            cells.append((layer, done, rank, quota, passing))
        widths = [max(map(len, column)) for column in zip(*cells)]
        layout = "  ".join(f"{{:{'<' if i < 2 else '>'}{width}}}" for i, width in enumerate(widths))
        return "\n".join(layout.format(*line).rstrip() for line in cells)


def _percent(shares: list[float]) -> str:
    """Format the mean of shares, and their range if there are several; empty without any."""
    if not shares:
        return ""
    mean, low, high = (f"{share:.1%}" for share in (fmean(shares), min(shares), max(shares)))
    return mean if low == high else f"{mean} ({low}..{high})"


def explain(
    scan: Scan,
    claims: Mapping[str, Claim],
    steps: Mapping[str, Collection[str]],
    passing: Mapping[str, float],
) -> Explanation:
    """Return one row per layer, frozen parameter, and parameter that cannot be shielded.

    `steps` says in words how the steps of each layer are treated, `passing` what share of its
    gradients is applied.
    """
    rows = []
    for name, block in scan.blocks.items():
        rank, quota, done = 0, 0.0, "no protected directions"
        if name in claims:
            values = claims[name].conceptor.singular_values
            rank, quota = claims[name].count_protected(values, _ROUNDING), float(values.mean())
        if rank:
            done = ", ".join(steps.get(name, ())) or "no guarded optimizer steps it"
            done = "fixed: all of it is protected" if is_bare(block.spec) else done
        rows.append(LayerRow(name, done, rank, block.size[1], quota, passing.get(name)))
    follows = "follows its direction to preserve its scale"
    rows += [LayerRow(name, follows, 0, 0, 1.0, None) for name in scan.magnitudes]
    rows += [LayerRow(n, "fixed after the first task", 0, 0, 1.0, None) for n in scan.frozen]
    ignored = [name for name in scan.unsupported if name not in scan.frozen]
    rows += [LayerRow(n, f"not protected: {scan.unsupported[n]}", 0, 0, 0.0, None) for n in ignored]
    return Explanation(rows)
