"""Checks of features and targets, before anything is learned from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from conceptors._internal import checks
from conceptors._internal.batches import feed_first

KINDS = ("nothing", "labels", "numbers", "number")  # of targets; the last is one per sample
_MOST_CLASSES = 1_000_000  # a larger label is a mistake


def feature_rows(features: Any, width: int, device: torch.device) -> Tensor:
    """Features `[n, width]`, in float32 at least."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise TypeError(
            f"features must be a tensor of floats, got {kind}; convert them, or in learn_from "
            f"select them by feed=lambda model, batch: ..."
        )
    if features.layout != torch.strided:
        raise TypeError("features must be a dense tensor; use .to_dense()")
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
    return checks.finite(rows.detach(), "features")


def target_rows(targets: Any, rows: Tensor, kind: int, outputs: int) -> tuple[int, Tensor]:
    """The index in KINDS of these targets, and labels `[n]` or numbers `[n, m]`.

    `kind` and `outputs` describe the targets learned so far.
    """
    if not isinstance(targets, Tensor) or targets.dtype == torch.bool or targets.is_complex():
        raise TypeError("targets must be a tensor of integers (labels) or floats (numbers)")
    if targets.layout != torch.strided:
        raise TypeError(f"targets must be a dense tensor, got {targets.layout}; use .to_dense()")
    shape, is_number = list(targets.shape), targets.is_floating_point()
    if len(shape) not in (1, 1 + is_number) or shape[0] != len(rows) or 0 in shape:
        raise ValueError(
            f"targets have shape {shape}, expected [{len(rows)}] like the features; numbers may "
            f"have [{len(rows)}, m]. Pass one-hot or multiple labels as floats"
        )
    if targets.device != rows.device:
        raise ValueError(f"targets are on {targets.device}, features on {rows.device}; move them")
    new_kind = 1 if not is_number else 4 - len(shape)
    if kind and new_kind != kind:
        raise ValueError(
            f"targets of shape {shape} and {targets.dtype} are {KINDS[new_kind]}, but "
            f"{KINDS[kind]} were learned so far; use another Readout for other targets"
        )
    if is_number:
        y = checks.finite(targets.detach(), "targets").reshape(len(rows), -1)
        if outputs and y.shape[1] != outputs:
            raise ValueError(f"targets have {y.shape[1]} columns, but {outputs} so far; match them")
        return new_kind, y
    labels = targets.long()
    low, high = (int(bound) for bound in labels.aminmax())
    if low < 0 or high >= _MOST_CLASSES:
        raise ValueError(
            f"label {low if low < 0 else high} is out of range: labels are integers from 0 to "
            f"{_MOST_CLASSES - 1}"
        )
    return new_kind, labels


def feed_without_labels(backbone: nn.Module, batch: Any) -> object:
    """Call a backbone with a batch without its labels, which most backbones do not accept."""
    if isinstance(batch, Mapping):
        batch = {key: value for key, value in batch.items() if key != "labels"}
    return feed_first(backbone, batch)


def last_part(batch: Any) -> Tensor:
    """The targets of a batch: its last element, or "labels"."""
    targets = batch.get("labels") if isinstance(batch, Mapping) else None
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        targets = batch[-1]
    if not isinstance(targets, Tensor):
        raise TypeError(
            "a batch has no targets as its last element or under 'labels'; select them by "
            "target=lambda batch: batch['y']"
        )
    return targets
