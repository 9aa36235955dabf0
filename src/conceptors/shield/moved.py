"""Fingerprints of protected weights, to detect changes by anything but guarded steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from conceptors._internal.precision import exactly, full
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import OddsForm
from conceptors.shield.blocks import WeightBlock, is_sharded

_PROBES = 8  # random protected directions of a fingerprint
_DRAWN = 32  # random inputs of a mark
_COLUMNS = 256  # columns of a second moment that the directions are mixed from
_ROWS, _NUMBERS = 64, 2**18  # outputs that are compared; fewer for many groups
_SOFT = 0.2  # soft conceptors let weights move a little
_HARD, _ROUNDING = 1e-3, 1e7  # hard tolerance: the smaller of 1e-3 and 1e7 eps


class Fingerprint(NamedTuple):
    """The product W Z of rows of a block `[g, out, d]` and protected directions `[g, d, k]`."""

    inputs: Tensor
    rows: Tensor
    value: Tensor

    @staticmethod
    def of(site: WeightBlock, claimed: Conceptor, seed: int) -> Fingerprint:
        """Compute the fingerprint of the current weights."""
        matrix = _matrix(site)
        groups, out, dim = matrix.shape
        draw = torch.Generator().manual_seed(seed)
        noise = torch.randn(groups, dim, min(_PROBES, dim), generator=draw).to(matrix)
        inputs = _within(claimed, noise)
        most = max(4, min(_ROWS, _NUMBERS // groups))
        rows = torch.linspace(0, out - 1, min(most, out)).long().to(matrix.device)
        return Fingerprint(inputs, rows, matrix[:, rows] @ inputs)

    def drift(self, site: WeightBlock) -> float:
        """Compute |ΔW Z| / |W Z|, also after rows or tokens were added; inf for other shapes."""
        matrix = _matrix(site)
        if site.block.layout == "tokens":
            matrix = matrix[: len(self.inputs)]
        groups, out, dim = matrix.shape
        if (groups, dim) != self.inputs.shape[:2] or out <= max(self.rows.tolist(), default=-1):
            return float("inf")
        now = matrix[:, self.rows.to(matrix.device)] @ self.inputs.to(matrix)
        before = self.value.to(matrix)
        return float((now - before).norm() / before.norm().clamp_min(1e-30))


class Mark:
    """The outputs of protected layers on inputs like the remembered ones, at one point in time.

    Inputs are drawn with the second moment of the remembered rows, R ∝ U diag(odds) Uᵀ.
    """

    @exactly()
    def __init__(
        self, sites: Mapping[str, WeightBlock], claimed: Mapping[str, Conceptor], seed: int
    ) -> None:
        self._prints: dict[str, Fingerprint] = {}
        for name, site in sites.items():
            if name in claimed and _is_readable(site):
                matrix = _matrix(site)
                inputs = _like_remembered(claimed[name], seed).to(matrix)
                rows = torch.arange(matrix.shape[1], device=matrix.device)
                self._prints[name] = Fingerprint(inputs, rows, matrix @ inputs)

    @exactly()
    def drifts(self, sites: Mapping[str, WeightBlock]) -> dict[str, float]:
        """Compute |ΔW z| / |W z| by layer, infinite for a layer that is gone or reshaped."""
        return {
            name: mark.drift(sites[name]) if name in sites else float("inf")
            for name, mark in self._prints.items()
            if name not in sites or _is_readable(sites[name])
        }


class Baseline:
    """The fingerprints of protected blocks when their weights were last trusted."""

    def __init__(self) -> None:
        self._prints: dict[str, Fingerprint] = {}

    def __bool__(self) -> bool:
        return bool(self._prints)

    def clear(self) -> None:
        self._prints = {}

    @exactly()
    def take(
        self, sites: Mapping[str, WeightBlock], claimed: Mapping[str, Conceptor], seed: int
    ) -> None:
        """Trust the weights as they are now."""
        self._prints = {
            name: Fingerprint.of(site, claimed[name], seed)
            for name, site in sites.items()
            if name in claimed and _has_rows(site)
        }

    def rounding(self, name: str, hard: bool) -> float:
        """Return how much of a block's drift may be rounding, in the dtype of the fingerprint."""
        return _tolerance(torch.finfo(self._prints[name].value.dtype).eps, hard)

    @exactly()
    def drifts(self, sites: Mapping[str, WeightBlock]) -> dict[str, float]:
        """Compute the relative drift of each block since its weights were trusted."""
        prints = {name: self._prints[name] for name in sites if name in self._prints}
        return {n: p.drift(sites[n]) for n, p in prints.items() if _has_rows(sites[n])}


def tolerance(site: WeightBlock, hard: bool) -> float:
    """Return how much drift may come from rounding or from guarded steps."""
    return _tolerance(max(torch.finfo(p.dtype).eps for p in site.parameters), hard)


def _tolerance(coarsest: float, hard: bool) -> float:
    return max(min(_HARD, _ROUNDING * coarsest) if hard else _SOFT, 8 * coarsest)


def _within(claimed: Conceptor, noise: Tensor) -> Tensor:
    """Draw random directions `[g, d, k]`, longer where more is protected."""
    form = claimed.form
    if isinstance(form, OddsForm):  # a wide layer's may be in main memory: use few columns
        sizes = form.matrix.diagonal(dim1=-2, dim2=-1)
        chosen = sizes.topk(min(_COLUMNS, sizes.shape[-1])).indices  # [g, k]
        columns = form.matrix.take_along_dim(chosen.unsqueeze(-2), -1) / sizes.amax().clamp_min(
            1e-30
        )
        return columns.to(noise) @ noise[:, : chosen.shape[-1]]
    parts = claimed.to(noise.device).form.spectrum()
    directions: Tensor = spectra.project(parts, noise.mT.to(claimed.dtype)).mT.to(noise)
    return directions


def _like_remembered(claimed: Conceptor, seed: int) -> Tensor:
    """Draw inputs `[g, d, k]` with the second moment of the remembered rows, up to scale."""
    vectors, odds, _ = claimed.form.spectrum()
    finite = odds.isfinite()
    largest = torch.where(finite, odds, 0.0).amax().clamp_min(1e-30)
    sizes = torch.where(finite, odds / largest, 1.0).sqrt()
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(*odds.shape, _DRAWN, generator=draw).to(vectors)
    inputs: Tensor = vectors @ (sizes.unsqueeze(-1) * noise)
    return inputs


def _matrix(site: WeightBlock) -> Tensor:
    """Return [W | b ...] `[g, out, d]`, in float32 at least."""
    return full(site.matrix(site.parameters))


def _has_rows(site: WeightBlock) -> bool:
    """Whether this process can compare rows of a block."""
    return _is_readable(site) or (
        site.block.rows_first and not any(p.is_meta for p in site.parameters)
    )


def _is_readable(site: WeightBlock) -> bool:
    """Whether this process has a whole block."""
    return not any(is_sharded(p.data) or p.is_meta for p in site.parameters)
