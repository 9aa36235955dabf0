"""Samples as they are given to a readout: checked before anything is learned."""

from __future__ import annotations

import torch
from torch import Tensor

from conceptors._internal import checks

KINDS = ("nothing", "labels", "numbers", "number")  # of targets; the last is one a sample
_CLASSES = 1_000_000  # a larger label is a mistake


def feature_rows(features: Tensor, width: int, device: torch.device) -> Tensor:
    """Features `[n, width]`, in float32 at least."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise TypeError(f"features must be a tensor of floats, got {kind}; use .float()")
    rows = features.flatten(1) if features.ndim > 2 else features
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"features have shape {list(features.shape)}, expected [n, {width}]")
    if rows.device != device:
        raise ValueError(
            f"features are on {rows.device}, the readout is on {device}; move one of them: "
            f"readout.to({str(rows.device)!r})"
        )
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows


def learnable(rows: Tensor) -> Tensor:
    """Rows without gradients, at least one of them, all finite."""
    if not len(rows):
        raise ValueError("features have no rows; at least one sample is needed")
    return checks.finite(rows.detach(), "features")


def target_rows(
    targets: Tensor, rows: Tensor, before: int, outputs: int, limit: int | None
) -> tuple[int, Tensor]:
    """Which of KINDS targets of these rows are, and labels `[n]` or numbers `[n, m]`.

    Args:
        before: the kind that was learned so far.
        outputs: how many there were so far.
        limit: labels must be smaller.
    """
    if not isinstance(targets, Tensor) or targets.dtype == torch.bool or targets.is_complex():
        raise TypeError("targets must be a tensor of integers (labels) or floats (numbers)")
    shape = list(targets.shape)
    if targets.ndim not in (1, 2) or len(targets) != len(rows) or 0 in shape:
        raise ValueError(
            f"targets have shape {shape}, expected [{len(rows)}] like the features, or "
            f"[{len(rows)}, m] for numbers"
        )
    if targets.device != rows.device:
        raise ValueError(f"targets are on {targets.device}, features on {rows.device}")
    numbers = targets.is_floating_point()
    kind = KINDS.index(("number" if targets.ndim == 1 else "numbers") if numbers else "labels")
    if before and kind != before:
        raise ValueError(
            f"targets of shape {shape} and {targets.dtype} are {KINDS[kind]}, but "
            f"{KINDS[before]} were learned so far"
        )
    if numbers:
        y = checks.finite(targets.detach(), "targets").reshape(len(rows), -1)
        if outputs and y.shape[1] != outputs:
            raise ValueError(f"targets have {y.shape[1]} columns, {outputs} so far")
        return kind, y
    if targets.ndim != 1:
        raise ValueError(
            f"labels must have shape [n], got {shape}; for one-hot or several labels a sample, "
            f"pass them as floats"
        )
    least, most = (int(v) for v in targets.aminmax())
    limit = limit or _CLASSES
    if least < 0 or most >= limit:
        wrong = least if least < 0 else most
        raise ValueError(
            f"label {wrong} is out of range: labels are integers from 0 to {limit - 1}"
        )
    return kind, targets.long()
