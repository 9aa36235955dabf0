"""Warn when a layer has few free directions left for later tasks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from conceptors._internal.checks import outside

_FULL = 0.95  # a layer with a larger quota is full
_STUCK = 0.05  # a layer hardly learns if a smaller share of its gradients is applied
_STUCK_AUTO = 0.01  # the same for aperture="auto", whose directions stay soft


class ShieldFullWarning(UserWarning):
    """Some layers have few free directions left, or hardly learn the current task."""


def full_layers(quotas: Mapping[str, float]) -> dict[str, float]:
    """Return the layers with few free directions, and their quotas."""
    return {name: quota for name, quota in quotas.items() if quota > _FULL}


def warn_if_full(quotas: Mapping[str, float], reported: set[str]) -> set[str]:
    """Warn once about each layer that has become full, and return their names."""
    full = {name: q for name, q in full_layers(quotas).items() if name not in reported}
    if full:
        listed = ", ".join(f"{name} ({quota:.1%})" for name, quota in full.items())
        warnings.warn(
            f"few free directions are left for later tasks in: {listed}. These layers will hardly "
            f"learn. Lower their aperture (with hard=True, use Energy(0.9)), start with wider "
            f"layers, or forget a task",
            ShieldFullWarning,
            stacklevel=outside(),
        )
    return set(full)


def stuck_layers(shares: Mapping[str, float], soft: Mapping[str, bool]) -> dict[str, float]:
    """Return the layers that hardly learn the current task, and their shares.

    Args:
        shares: the share of the gradients that is applied, by layer.
        soft: the layers with more than two directions, and whether their aperture is "auto".
    """
    return {
        name: share
        for name, share in shares.items()
        if name in soft and share < (_STUCK_AUTO if soft[name] else _STUCK)
    }


def warn_if_stuck(shares: Mapping[str, float], soft: Mapping[str, bool]) -> None:
    """Warn about `stuck_layers` after some steps of a task."""
    stuck = stuck_layers(shares, soft)
    if not stuck:
        return
    listed = ", ".join(f"{name} ({share:.1%})" for name, share in stuck.items())
    warnings.warn(
        f"hardly any of this task's gradients is applied in: {listed}. Earlier tasks use the same "
        f"directions, so these layers hardly learn. Lower their aperture (with hard=True, use "
        f"Energy(0.9)), start with wider layers, forget a task, or replace the last layer by a "
        f"Readout. shield.explain() shows all layers",
        ShieldFullWarning,
        stacklevel=outside(),
    )
