"""Telling when there is little room left for further tasks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from conceptors._internal.checks import outside

_FULL = 0.95  # quota from which a layer counts as full
_STUCK = 0.05  # share of a step that passes, under which a layer hardly learns
_STUCK_AUTO = 0.01  # the same with an automatic aperture, whose directions stay soft


class ShieldFullWarning(UserWarning):
    """Some layers have little free space left for further tasks, or let hardly any step pass."""


def full_layers(quotas: Mapping[str, float]) -> dict[str, float]:
    """Layers with little space left for further tasks."""
    return {name: quota for name, quota in quotas.items() if quota > _FULL}


def warn_if_full(quotas: Mapping[str, float], known: set[str]) -> set[str]:
    """Warn once about each layer that has become full; return the names of these."""
    full = {name: q for name, q in full_layers(quotas).items() if name not in known}
    if full:
        listed = ", ".join(f"{name} ({quota:.1%})" for name, quota in full.items())
        warnings.warn(
            f"little space is left for further tasks in: {listed}. Lower the aperture there "
            f"(Energy(0.9) where hard=True had none), begin with wider layers, or forget a task",
            ShieldFullWarning,
            stacklevel=outside(),
        )
    return set(full)


def stuck_layers(shares: Mapping[str, float], soft: Mapping[str, bool]) -> dict[str, float]:
    """Layers where hardly anything passes, so that a task is not learned there.

    Args:
        shares: of the steps that pass, by layer.
        soft: the layers with more than a few directions, and whether theirs stay soft.
    """
    return {
        name: share
        for name, share in shares.items()
        if name in soft and share < (_STUCK_AUTO if soft[name] else _STUCK)
    }


def warn_if_stuck(shares: Mapping[str, float], soft: Mapping[str, bool]) -> None:
    """After some steps of a task, about `stuck_layers`."""
    stuck = stuck_layers(shares, soft)
    if not stuck:
        return
    listed = ", ".join(f"{name} ({share:.1%})" for name, share in stuck.items())
    warnings.warn(
        f"hardly anything of this task's steps passes in: {listed}. Earlier tasks use the "
        f"same directions there: lower the aperture (Energy(0.9) where hard=True had none), "
        f"begin with wider layers, forget a task, or learn the last layer in closed form; "
        f"shield.explain() tells more",
        ShieldFullWarning,
        stacklevel=outside(),
    )
