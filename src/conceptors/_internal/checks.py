"""Checks of arguments before anything is computed or changed.

Every error names the argument, its value or shape, and the remedy.
"""

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.float64)


def real_tensor(x: Any, name: str) -> Tensor:
    """Return `x`, a tensor or numpy array, as a dense float32 or float64 tensor."""
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
    """Refuse NaN and infinity, and name the first bad entry."""
    if x.numel() and bool(torch.stack(x.aminmax()).isfinite().all()):  # one pass, no copy
        return x
    good = torch.isfinite(x)
    if not bool(good.all()):
        where = tuple((~good).nonzero()[0].tolist())
        place = f"in row {where[0]}, column {where[1]}" if x.ndim == 2 else f"at {where}"
        raise ValueError(
            f"{name} of shape {list(x.shape)} must be finite, but {int((~good).sum())} of "
            f"{x.numel()} entries are NaN or infinite, the first {place} ({float(x[where])}); "
            f"remove or impute them first"
        )
    return x


def symmetric(given: Any, name: str) -> Tensor:
    """Check that matrices `[..., d, d]` are symmetric up to rounding; return them exactly so."""
    x = real_tensor(given, name).detach()
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or 0 in x.shape:
        raise ValueError(
            f"{name} must have shape [..., d, d] with d >= 1, got {list(x.shape)}; "
            f"for rows of samples use Conceptor.from_states"
        )
    finite(x, name)
    scale, gap = x.abs().amax((-2, -1)), (x - x.mT).abs().amax((-2, -1))
    wrong = gap > loose(x.dtype) * scale
    if bool(wrong.any()):
        raise ValueError(
            f"{name} of shape {list(x.shape)} is not symmetric: {name} and its transpose differ "
            f"by {float(gap[wrong][0]):.3g} where the largest entry is "
            f"{float(scale[wrong][0]):.3g}; pass ({name} + {name}.mT) / 2 to symmetrise it"
        )
    even: Tensor = x / 2 + x.mT / 2
    return even


def positive_semidefinite(given: Any, name: str) -> Tensor:
    """Check for symmetric matrices without negative eigenvalues, by one Cholesky."""
    x = symmetric(given, name)
    top: Tensor = x.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(0)[..., None, None]
    shifted = x / top.clamp_min(torch.finfo(x.dtype).tiny)
    shifted.diagonal(dim1=-2, dim2=-1).add_(loose(x.dtype))
    if bool((torch.linalg.cholesky_ex(shifted).info != 0).any()):
        low = float(torch.linalg.eigvalsh(x).amin())
        raise ValueError(
            f"{name} of shape {list(x.shape)} is not positive semi-definite: its smallest "
            f"eigenvalue is {low:.3g} where its largest diagonal entry is {float(top.max()):.3g}; "
            f"a correlation matrix is X.mT @ X / n"
        )
    return x


def number(
    value: Any,
    name: str,
    low: float,
    high: float,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return a real number from `low` to `high`, which `open_low` and `open_high` exclude."""
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError(f"{name} exceeds the range of floats; pass less") from None
    is_open = (open_low and result == low) or (open_high and result == high)
    if not low <= result <= high or is_open:
        least, most = "above" if open_low else "at least", "below" if open_high else "at most"
        limit = f" and {most} {high:g}" if high < math.inf or open_high else ""
        raise ValueError(f"{name} must be a number {least} {low:g}{limit}, got {result}")
    return result


def aperture(value: Any, batch: torch.Size, like: Tensor) -> Tensor:
    """Return a positive, finite aperture, or one per member of a batch, as a tensor `[...]`."""
    if isinstance(value, Tensor) and value.ndim > 0:
        each = real_tensor(value, "aperture").detach()
    else:
        one = number(value, "aperture", 0.0, math.inf, open_low=True, open_high=True)
        each = torch.tensor(one, dtype=torch.float64)
    try:
        alpha = each.broadcast_to(batch).to(like).clone()
    except RuntimeError:
        raise ValueError(
            f"aperture of shape {list(each.shape)} does not fit the batch shape {list(batch)}; "
            f"pass one number, or one per member of the batch"
        ) from None
    if not bool((torch.isfinite(alpha) & (alpha > 0)).all()):
        raise ValueError(f"aperture must be above 0 and finite as {like.dtype}, got {value}")
    return alpha


def same_kind(a: Any, b: Any, name_a: str, name_b: str) -> None:
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
    """Check that a dtype is float32 or float64."""
    if dtype not in _DTYPES:
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    checked: torch.dtype = dtype
    return checked


def whole(value: Any, name: str, low: int, high: int | None = None) -> int:
    """Return an integer in [low, high]."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(
            f"{name} must be a whole number, got {value!r} of type {type(value).__name__}"
        )
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" + ("" if high is None else f" and at most {high}")
        raise ValueError(f"{name} must be {limit}, got {value}")
    return int(value)


def loose(dtype: torch.dtype) -> float:
    """Return the tolerance for matrices that callers computed: the square root of epsilon."""
    return math.sqrt(torch.finfo(dtype).eps)


def nearest(name: str, known: Iterable[str]) -> str:
    """End an error message with `; did you mean ...?` and the possible names.

    >>> nearest("disjoint-mist", ["disjoint-mnist", "permuted-mnist"])
    "; did you mean 'disjoint-mnist'? there are: disjoint-mnist, permuted-mnist"
    """
    names, most = sorted(known), 30
    close = get_close_matches(str(name), names, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in close)}? " if close else ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"; {hint}there are: {', '.join(names[:most])}{more}"


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Name the extra to install if an import inside fails."""
    try:
        yield
    except ImportError:
        raise ImportError(f"{what}: pip install 'conceptors[{extra}]'") from None


def outside() -> int:
    """Return the `stacklevel` of the user's code, outside this package and torch."""
    ours = ("conceptors.", "torch.", "contextlib")
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        frame, level = frame.f_back, level + 1
    return level
