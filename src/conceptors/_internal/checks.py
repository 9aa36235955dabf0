"""Checks of what callers pass in, made before anything is computed or changed.

Every error names the argument, its value or shape, and what to do about it.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.float64)


def real_tensor(x: Any, name: str) -> Tensor:
    """`x` as a dense float32 or float64 tensor; numpy arrays are taken too."""
    if isinstance(x, np.ndarray) and x.dtype in (np.float32, np.float64):
        x = torch.tensor(x)
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} must be a torch tensor or a float numpy array, got {type(x).__name__}"
            f"{f' of dtype {x.dtype}' if isinstance(x, np.ndarray) else ''}; "
            f"convert it with torch.as_tensor(..., dtype=torch.float64)"
        )
    if x.dtype not in _DTYPES:
        raise TypeError(
            f"{name} must be float32 or float64, got {x.dtype} of shape {list(x.shape)}; "
            f"convert it with .float() or .double()"
        )
    if x.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}; call .to_dense()")
    return x


def finite(x: Tensor, name: str) -> Tensor:
    """Refuse NaN and infinity, naming the first bad entry."""
    if x.numel() and bool(torch.stack(x.aminmax()).isfinite().all()):  # one pass, no copy
        return x
    good = torch.isfinite(x)
    if not bool(good.all()):
        where = tuple((~good).nonzero()[0].tolist())
        raise ValueError(
            f"{name} of shape {list(x.shape)} has {int((~good).sum())} NaN or infinite entries, "
            f"the first at {where} ({float(x[where])}); remove or impute them first"
        )
    return x


def states(x: Any, name: str = "states") -> Tensor:
    """Rows of samples `[..., n, d]`, at least one row and one column, all finite."""
    x = real_tensor(x, name).detach()
    if x.ndim < 2:
        raise ValueError(
            f"{name} must have shape [..., n, d] (rows are samples), got {list(x.shape)}; "
            f"a single sample needs a row axis: {name}[None]"
        )
    if 0 in x.shape:
        raise ValueError(
            f"{name} of shape {list(x.shape)} is empty; at least one sample of one dimension is "
            f"needed"
        )
    return finite(x, name)


def square(x: Any, name: str) -> Tensor:
    """Square matrices `[..., d, d]`, not empty, all finite."""
    x = real_tensor(x, name).detach()
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or 0 in x.shape:
        raise ValueError(
            f"{name} must have shape [..., d, d] with d >= 1, got {list(x.shape)}; "
            f"from rows of samples use Conceptor.from_states"
        )
    return finite(x, name)


def symmetric(given: Any, name: str) -> Tensor:
    """Symmetric matrices up to rounding (the square root of machine epsilon), made exactly so."""
    x = square(given, name)
    scale, gap = x.abs().amax((-2, -1)), (x - x.mT).abs().amax((-2, -1))
    wrong = gap > _loose(x.dtype) * scale
    if bool(wrong.any()):
        raise ValueError(
            f"{name} of shape {list(x.shape)} is not symmetric: {name} and its transpose differ "
            f"by {float(gap[wrong][0]):.3g} where the largest entry is "
            f"{float(scale[wrong][0]):.3g}; pass ({name} + {name}.mT) / 2 if that is meant"
        )
    even: Tensor = x / 2 + x.mT / 2
    return even


def positive_semidefinite(given: Any, name: str) -> Tensor:
    """Symmetric matrices without negative eigenvalues beyond rounding.

    One Cholesky factorisation of the slightly shifted matrix decides; eigenvalues are only
    computed to say what is wrong.
    """
    x = symmetric(given, name)
    top: Tensor = x.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(0)[..., None, None]
    tiny = torch.finfo(x.dtype).tiny
    scaled = x / top.clamp_min(tiny)
    shift = _loose(x.dtype) * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    failed = torch.linalg.cholesky_ex(scaled + shift).info
    if bool((failed != 0).any()):
        low = float(torch.linalg.eigvalsh(x).amin())
        raise ValueError(
            f"{name} of shape {list(x.shape)} is not positive semi-definite: its smallest "
            f"eigenvalue is {low:.3g} where its largest diagonal entry is {float(top.max()):.3g}; "
            f"a correlation matrix is X.mT @ X / n"
        )
    return x


def number(value: Any, name: str, low: float, high: float, *, open_low: bool = False) -> float:
    """A real number in [low, high] (or ]low, high] with `open_low`)."""
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    try:
        found = float(value)
    except OverflowError:
        raise ValueError(f"{name} is an integer beyond the range of floats") from None
    if not low <= found <= high or (open_low and found == low):
        raise ValueError(
            f"{name} must be a number in {']' if open_low else '['}{low:g}, {high:g}], got {found}"
        )
    return found


def aperture(value: Any, batch: torch.Size, like: Tensor) -> Tensor:
    """A positive, finite aperture, or one for each member of a batch, as a tensor `[...]`."""
    if isinstance(value, Tensor) and value.ndim > 0:
        value = real_tensor(value, "aperture")
        if not bool((torch.isfinite(value) & (value > 0)).all()):
            raise ValueError(f"every aperture must be positive and finite, got {value.tolist()}")
        if broadcast(value.shape, batch) != batch:
            raise ValueError(
                f"aperture of shape {list(value.shape)} does not fit the batch shape "
                f"{list(batch)}; give one number, or one for each member of the batch"
            )
        spread: Tensor = value.detach().broadcast_to(batch)
    else:
        found = number(value, "aperture", 0.0, math.inf, open_low=True)
        if math.isinf(found):
            raise ValueError(
                f"aperture must be finite, got {value}; for the limit use .adapt(math.inf) on a "
                f"conceptor"
            )
        spread = torch.full(batch, found, dtype=torch.float64)
    kept = spread.to(like).clone()
    if not bool((torch.isfinite(kept) & (kept > 0)).all()):
        raise ValueError(f"aperture {value} is beyond the range of {like.dtype}; scale the data")
    return kept


def spectrum(vectors: Any, values: Any, rest: Any) -> tuple[Tensor, Tensor, float]:
    """Orthonormal columns `[..., d, r]`, values `[..., r]` in [0, 1], rest 0 or 1.

    Where r < d columns may be zero, which says nothing, so that their value must be `rest`.
    """
    vectors = finite(real_tensor(vectors, "vectors").detach(), "vectors")
    values = finite(real_tensor(values, "values").detach(), "values")
    if vectors.ndim < 2 or 0 in vectors.shape[:-1] or vectors.shape[-1] > vectors.shape[-2]:
        raise ValueError(
            f"vectors must have shape [..., d, r] with d >= 1 and r <= d, got "
            f"{list(vectors.shape)}; directions are columns"
        )
    if values.shape != vectors.shape[:-2] + vectors.shape[-1:]:
        raise ValueError(
            f"values of shape {list(values.shape)} do not fit vectors of shape "
            f"{list(vectors.shape)}: one value for each column is needed"
        )
    same_kind(vectors, values, "vectors", "values")
    if values.numel() and not 0 <= float(values.amin()) <= float(values.amax()) <= 1:
        raise ValueError(
            f"values must lie in [0, 1], got {float(values.amin()):.4g} to "
            f"{float(values.amax()):.4g}; clamp them, or pass a correlation matrix to "
            f"Conceptor.from_correlation"
        )
    if number(rest, "rest", 0.0, 1.0) not in (0.0, 1.0):
        raise ValueError(f"rest must be 0 or 1, got {rest}")
    # in float64, as products of float32 may be rounded to TF32
    wide = vectors if vectors.device.type == "mps" else vectors.double()
    gram = wide.mT @ wide
    held = gram.diagonal(dim1=-2, dim2=-1) > 0.5
    if vectors.shape[-1] == vectors.shape[-2]:
        held = torch.ones_like(held)
    off = float((gram - torch.diag_embed(held.to(gram))).abs().amax()) if gram.numel() else 0.0
    if not off <= _loose(vectors.dtype):  # also NaN, where the product overflows
        raise ValueError(
            f"the columns of vectors {list(vectors.shape)} are not orthonormal (off by "
            f"{off:.3g}); take torch.linalg.qr(vectors).Q, or use Conceptor.from_states"
        )
    if bool((values[~held] != float(rest)).any()):
        raise ValueError(
            f"columns of zeros in vectors {list(vectors.shape)} have other values than rest = "
            f"{rest}; leave them out"
        )
    return vectors, values, float(rest)


def conceptor_matrix(given: Any) -> Tensor:
    """Symmetric matrices with eigenvalues in [0, 1] up to rounding."""
    x = symmetric(given, "matrix")
    found = torch.linalg.eigvalsh(x)
    low, high = float(found.amin()), float(found.amax())
    if not -_loose(x.dtype) <= low <= high <= 1 + _loose(x.dtype):
        raise ValueError(
            f"matrix of shape {list(x.shape)} is not a conceptor: its eigenvalues reach from "
            f"{low:.4g} to {high:.4g} where [0, 1] is needed; for a correlation matrix use "
            f"Conceptor.from_correlation"
        )
    return x


def same_kind(a: Tensor, b: Tensor, name_a: str, name_b: str) -> None:
    """Refuse to mix dtypes (TypeError) or devices (ValueError)."""
    if a.dtype != b.dtype:
        raise TypeError(
            f"{name_a} is {a.dtype}, {name_b} is {b.dtype}; convert one of them with .to(dtype=...)"
        )
    if a.device != b.device:
        raise ValueError(
            f"{name_a} is on {a.device}, {name_b} on {b.device}; move one of them with .to(device)"
        )


def real_dtype(dtype: Any) -> torch.dtype:
    """float32 or float64."""
    if dtype not in _DTYPES:
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    kept: torch.dtype = dtype
    return kept


def whole(value: Any, name: str, low: int, high: int | None = None) -> int:
    """An integer in [low, high]."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(
            f"{name} must be a whole number, got {value!r} of type {type(value).__name__}"
        )
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"in [{low}, {high}]"
        raise ValueError(f"{name} must be {limit}, got {value}")
    return int(value)


def broadcast(*shapes: torch.Size) -> torch.Size | None:
    """The common shape, or None if there is none."""
    try:
        return torch.Size(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


def _loose(dtype: torch.dtype) -> float:
    """What counts as rounding in matrices that callers computed: the square root of epsilon."""
    return math.sqrt(torch.finfo(dtype).eps)
