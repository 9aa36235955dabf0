"""Checks of samples and spectra before anything is computed."""

from typing import Any

import torch
from torch import Tensor

from conceptors._internal import checks


def check_states(x: Any, name: str = "states") -> Tensor:
    """Rows of samples `[..., n, d]`, at least one row and one column, all finite."""
    x = checks.real_tensor(x, name).detach()
    if x.ndim < 2:
        raise ValueError(
            f"{name} must have shape [..., n, d] (rows are samples), got {list(x.shape)}; "
            f"a single sample needs a row axis: {name}[None]"
        )
    if 0 in x.shape:
        raise ValueError(
            f"{name} of shape {list(x.shape)} is empty; pass at least one sample with one dimension"
        )
    return checks.finite(x, name)


def check_spectrum(vectors: Any, values: Any, rest: Any) -> tuple[Tensor, Tensor, float]:
    """Check orthonormal columns `[..., d, r]`, values `[..., r]` in [0, 1], and rest 0 or 1.

    If r < d, columns may be zero; then they describe no direction, and their value must be `rest`.
    """
    vectors = checks.finite(checks.real_tensor(vectors, "vectors").detach(), "vectors")
    values = checks.finite(checks.real_tensor(values, "values").detach(), "values")
    if vectors.ndim < 2 or 0 in vectors.shape[:-1] or vectors.shape[-1] > vectors.shape[-2]:
        raise ValueError(
            f"vectors must have shape [..., d, r] with d >= 1 and r <= d, got "
            f"{list(vectors.shape)}; directions are columns"
        )
    if values.shape != vectors.shape[:-2] + vectors.shape[-1:]:
        raise ValueError(
            f"values of shape {list(values.shape)} do not fit vectors of shape "
            f"{list(vectors.shape)}; pass one value per column"
        )
    checks.same_kind(vectors, values, "vectors", "values")
    if values.numel() and not 0 <= float(values.amin()) <= float(values.amax()) <= 1:
        raise ValueError(
            f"values must lie in [0, 1], got {float(values.amin()):.4g} to "
            f"{float(values.amax()):.4g}; clamp them, or pass a correlation matrix to "
            f"Conceptor.from_correlation"
        )
    if checks.number(rest, "rest", 0.0, 1.0) not in (0.0, 1.0):
        raise ValueError(f"rest must be 0 or 1, got {rest}; pass other directions in vectors")
    wide = vectors.double()  # products of float32 may be rounded to TF32
    gram = wide.mT @ wide
    is_unit = gram.diagonal(dim1=-2, dim2=-1) > 0.5
    if vectors.shape[-1] == vectors.shape[-2]:
        is_unit = torch.ones_like(is_unit)
    off = float((gram - torch.diag_embed(is_unit.to(gram))).abs().amax()) if gram.numel() else 0.0
    if not off <= checks.loose(vectors.dtype):  # also NaN, where the product overflows
        raise ValueError(
            f"the columns of vectors {list(vectors.shape)} are not orthonormal (off by "
            f"{off:.3g}); pass torch.linalg.qr(vectors).Q, or use Conceptor.from_states"
        )
    if bool((values[~is_unit] != float(rest)).any()):
        raise ValueError(
            f"vectors {list(vectors.shape)} have columns of zeros whose values differ from rest = "
            f"{rest}; leave these columns out"
        )
    return vectors, values, float(rest)


def check_broadcast(batch: torch.Size, other: torch.Size, what: str) -> None:
    """Refuse shapes that do not broadcast with a batch of conceptors."""
    try:
        torch.broadcast_shapes(batch, other)
    except RuntimeError:
        raise ValueError(
            f"{what} does not broadcast with a batch of conceptors of shape {list(batch)}; index "
            f"one of them"
        ) from None
