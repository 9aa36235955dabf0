"""How a shield protects each layer: as a table, and compared with new data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from conceptors._internal.precision import exactly
from conceptors.algebra import conceptor as algebra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import OddsForm
from conceptors.layers.bare import is_bare
from conceptors.shield.blocks import Scan, WeightBlock
from conceptors.shield.claims import stride
from conceptors.shield.health import Fingerprint, block_matrix, is_readable

_DRAWN = 32  # random inputs of a mark


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
    ways: Mapping[str, list[str]],
    passing: Mapping[str, float],
) -> Explanation:
    """Return one row per layer, frozen parameter, and parameter that cannot be shielded.

    Args:
        ways: how guarded optimizers step each layer, in words.
    """
    rows = []
    for name, site in scan.sites.items():
        rank, quota = ranks.get(name, 0), quotas.get(name, 0.0)
        done = ", ".join(ways.get(name, [])) or "no guarded optimizer steps it"
        if not rank:
            done = "no protected directions"
        elif is_bare(site.block) and quota == 1.0:
            done = "fixed: all of it is protected"
        rows.append(LayerRow(name, done, rank, site.size[1], quota, passing.get(name)))
    follows = "follows its direction to preserve its scale"
    rows += [LayerRow(name, follows, 0, 0, 1.0, None) for name in scan.magnitudes]
    rows += [LayerRow(n, "fixed after the first task", 0, 0, 1.0, None) for n in scan.frozen]
    ignored = [name for name in scan.unsupported if name not in scan.frozen]
    rows += [LayerRow(n, f"not protected: {scan.unsupported[n]}", 0, 0, 0.0, None) for n in ignored]
    return Explanation(rows)


def expected_passing(
    task: Mapping[str, Conceptor], claimed: Mapping[str, Conceptor]
) -> dict[str, float]:
    """Compute the share of a task's inputs in free directions, 1 - E xᵀA x / E|x|², by layer.

    A gradient is a sum of outer products with the inputs, so about this share of it is applied.
    """
    shares = {}
    for name in [name for name in task if name in claimed]:
        form, A = task[name].form, claimed[name].to(task[name].device)
        if isinstance(form, OddsForm):  # a decomposition would take longer
            protected, whole = (A.matrix() * form.matrix).sum(), form.trace().sum()
        else:
            vectors, odds, _ = form.spectrum()
            sizes = torch.where(odds.isfinite(), odds, 1.0)  # infinite for a bare parameter
            roots = vectors * sizes.sqrt().unsqueeze(-2)  # K with K Kᵀ = α² R
            protected, whole = A.evidence(roots.mT).sum(), sizes.sum()
        shares[name] = float(1 - protected / whole.clamp_min(1e-300))
    return shares


def similarity(task: Mapping[str, Conceptor], claimed: Mapping[str, Conceptor]) -> dict[str, float]:
    """Compute the similarity ρ of a task with all remembered tasks, by layer."""
    return {
        name: float(algebra.similarity(conceptor, claimed[name].to(conceptor.device)).mean())
        for name, conceptor in task.items()
        if name in claimed
    }


def strides(
    task: Mapping[str, Conceptor], claimed: Mapping[str, Conceptor], known: float
) -> dict[str, float]:
    """Compute factors for the learning rates of a task, by layer; see `Shield.strides`."""
    return {
        name: float(stride(claimed[name].to(conceptor.device), conceptor, known).amin())
        for name, conceptor in task.items()
        if name in claimed
    }


@exactly()
def mark(
    sites: Mapping[str, WeightBlock], claimed: Mapping[str, Conceptor]
) -> dict[str, Fingerprint]:
    """Compute the outputs of protected layers on inputs like the remembered ones.

    Inputs are drawn with the second moment of the remembered rows, R ∝ U diag(odds) Uᵀ.
    """
    prints = {}
    for name, site in sites.items():
        if name in claimed and is_readable(site):
            matrix = block_matrix(site)
            inputs = _like_remembered(claimed[name]).to(matrix)
            rows = torch.arange(matrix.shape[1], device=matrix.device)
            prints[name] = Fingerprint(inputs, rows, matrix @ inputs)
    return prints


@exactly()
def moved_since(
    prints: Mapping[str, Fingerprint], sites: Mapping[str, WeightBlock]
) -> dict[str, float]:
    """Compute |ΔW z| / |W z| by layer since a mark; inf for a layer that is gone or reshaped."""
    return {
        name: before.drift(sites[name]) if name in sites else float("inf")
        for name, before in prints.items()
        if name not in sites or is_readable(sites[name])
    }


def _like_remembered(claimed: Conceptor) -> Tensor:
    """Draw inputs `[g, d, k]` with the second moment of the remembered rows, up to scale."""
    vectors, odds, _ = claimed.form.spectrum()
    finite = odds.isfinite()
    largest = torch.where(finite, odds, 0.0).amax().clamp_min(1e-30)
    sizes = torch.where(finite, odds / largest, 1.0).sqrt()
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(*odds.shape, _DRAWN, generator=draw).to(vectors)
    inputs: Tensor = vectors @ (sizes.unsqueeze(-1) * noise)
    return inputs
