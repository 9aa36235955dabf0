"""Samples as they are given to a readout: checked before anything is learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from conceptors._internal import checks
from conceptors._internal.batches import feed_first

KINDS = ("nothing", "labels", "numbers", "number")  # of targets; the last is one a sample
_NAMES = ("nothing", "labels", "numbers, several a sample,", "numbers, one a sample,")
_CLASSES = 1_000_000  # a larger label is a mistake
_LARGEST = 1e18  # whose square float32 still holds
_SPREAD = 1e15  # of lifted features: float32 holds sums of thousands of their squares


def feature_rows(features: Tensor, width: int, device: torch.device) -> Tensor:
    """Features `[n, width]`, in float32 at least."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise TypeError(f"features must be a tensor of floats, got {kind}; use .float()")
    if features.layout != torch.strided:
        raise TypeError(f"features must be a dense tensor, got {features.layout}; use .to_dense()")
    rows = features.flatten(1) if features.ndim > 2 else features
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"features have shape {list(features.shape)}, expected [n, {width}]")
    if rows.device != device:
        raise ValueError(
            f"features are on {rows.device}, the readout is on {device}; move one of them: "
            f"readout.to({str(rows.device)!r})"
        )
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def learnable(rows: Tensor) -> Tensor:
    """Rows without gradients, at least one of them, all finite."""
    if not len(rows):
        raise ValueError("features have no rows; at least one sample is needed")
    rows = checks.finite(rows.detach(), "features")
    if float(rows.abs().amax()) > _LARGEST:
        raise ValueError(f"features reach {float(rows.abs().amax()):.3g}; scale them below 1e18")
    return rows


def lifted_rows(h: object, rows: Tensor, width: int) -> Tensor:
    """[h; 1] `[n, width + 1]` of what a lift makes of rows, in float32 at least."""
    if not isinstance(h, Tensor) or tuple(h.shape) != (len(rows), width):
        got = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise ValueError(f"the lift gave {got}, expected features [{len(rows)}, {width}]")
    h = h if h.dtype in (torch.float32, torch.float64) else h.float()
    size = float(h.abs().amax())
    if not size <= _SPREAD:  # also NaN
        raise ValueError(
            f"lifted features reach {size:.3g}: these samples are far larger than those that the "
            f"lift was fixed by; scale them alike, or calibrate a new readout by both"
        )
    return torch.cat([h, torch.ones_like(h[:, :1])], 1)


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
    if targets.layout != torch.strided:
        raise TypeError(f"targets must be a dense tensor, got {targets.layout}; use .to_dense()")
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
            f"targets of shape {shape} and {targets.dtype} are {_NAMES[kind]}, but "
            f"{_NAMES[before]} were learned so far"
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
    labels = targets.long()
    least, most = (int(v) for v in labels.aminmax())
    limit = limit or _CLASSES
    if least < 0 or most >= limit:
        wrong = least if least < 0 else most
        raise ValueError(
            f"label {wrong} is out of range: labels are integers from 0 to {limit - 1}"
        )
    return kind, labels


# --- from batches ----------------------------------------------------------------------------


def feed_without_labels(backbone: nn.Module, batch: Any) -> object:
    """What a backbone makes of a batch; most do not know what to do with labels."""
    if isinstance(batch, Mapping):
        batch = {key: value for key, value in batch.items() if key != "labels"}
    return feed_first(backbone, batch)


def last_part(batch: Any) -> Tensor:
    """Targets of a batch."""
    found = batch.get("labels") if isinstance(batch, Mapping) else None
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        found = batch[-1]
    if not isinstance(found, Tensor):
        raise TypeError(
            "a batch does not tell its targets; say how by target=lambda batch: batch['y']"
        )
    return found


def backbone_features(found: object) -> Tensor:
    """What a backbone gave, if it is a tensor."""
    if not isinstance(found, Tensor):
        raise TypeError(
            f"the backbone gave a {type(found).__name__}, not a tensor of features; say how to get "
            f"them by feed=lambda model, batch: model(batch[0]).last_hidden_state.mean(1)"
        )
    return found.detach()
