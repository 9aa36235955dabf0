"""Checks of features and labels, before anything is learned from them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from conceptors._internal import checks
from conceptors._internal.batches import feed_first

_MOST_CLASSES = 1_000_000  # a larger label is a mistake


def feature_rows(features: Any, width: int, device: torch.device) -> Tensor:
    """Features `[n, width]`, in float32 at least."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise TypeError(
            f"features must be a tensor of floats, got {kind}; convert them, or in learn_from "
            f"select them by feed=lambda model, batch: ..."
        )
    _check_place(features, "features", device)
    rows = features.flatten(1) if features.ndim > 2 else features
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"features have shape {list(features.shape)}, expected [n, {width}]")
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def learnable(rows: Tensor) -> Tensor:
    """Rows without gradients, at least one of them, all finite."""
    if not len(rows):
        raise ValueError("features have no rows; at least one sample is needed")
    return checks.finite(rows.detach(), "features")


def class_labels(labels: Any, rows: Tensor) -> Tensor:
    """Labels `[n]` of rows `[n, d]`, integers from 0."""
    is_tensor = isinstance(labels, Tensor) and labels.dtype != torch.bool
    if not is_tensor or labels.is_floating_point() or labels.is_complex():
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(
            f"labels must be a tensor of integers, got {kind}; for numbers see ConceptorRidge"
        )
    _check_place(labels, "labels", rows.device)
    if labels.shape != rows.shape[:1]:
        raise ValueError(
            f"labels have shape {list(labels.shape)}, expected [{len(rows)}] like the features"
        )
    low, high = (int(bound) for bound in labels.aminmax())
    if low < 0 or high >= _MOST_CLASSES:
        raise ValueError(
            f"label {low if low < 0 else high} is out of range: labels are integers from 0 to "
            f"{_MOST_CLASSES - 1}"
        )
    checked: Tensor = labels.long()
    return checked


def _check_place(x: Tensor, name: str, device: torch.device) -> None:
    if x.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got {x.layout}; use .to_dense()")
    if x.device != device:
        raise ValueError(
            f"{name} are on {x.device}, the readout is on {device}; move one of them: "
            f"readout.to({str(x.device)!r})"
        )


def feed_without_labels(backbone: nn.Module, batch: Any) -> object:
    """Call a backbone with a batch without its labels, which most backbones do not accept."""
    if isinstance(batch, Mapping):
        batch = {key: value for key, value in batch.items() if key != "labels"}
    return feed_first(backbone, batch)


def last_part(batch: Any) -> Tensor:
    """The labels of a batch: its last element, or "labels"."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        labels = batch[-1]
    if not isinstance(labels, Tensor):
        raise TypeError(
            "a batch has no labels as its last element or under 'labels'; select them by "
            "target=lambda batch: batch['y']"
        )
    return labels
