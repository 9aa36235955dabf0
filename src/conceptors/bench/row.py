"""One line of the table of results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

Size = Literal["tiny", "quick", "full"]
SIZES: tuple[Size, ...] = ("tiny", "quick", "full")


class UnfitError(RuntimeError):
    """A benchmark cannot be run here (no GPU, no data); the message says why."""


@dataclass(frozen=True)
class Row:
    """What was measured: ours against something plain, and what was aimed at.

    `plain` and `ours` are in `unit` ("s" a step or a call, "B", "%" or ""). The target is for the
    ratio; where there is none, for `ours`. `floor` is the least time that the added work can take
    on this machine, `share` how much of the time added is that floor. For `drift` and `leak` see
    `conceptors.bench.protection`.

    >>> Row("step", "batch 8", plain=2.0, ours=3.0, ratio=1.5, target=1.6).met
    True
    """

    what: str
    setting: str
    unit: str = "s"
    plain: float | None = None
    ours: float | None = None
    ratio: float | None = None
    target: float | None = None
    more: bool = False  # the target is to be reached from above
    floor: float | None = None
    share: float | None = None
    drift: float | None = None
    drift_plain: float | None = None
    leak: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target or a number."""
        value = self.ours if self.ratio is None else self.ratio
        if self.target is None:
            return None
        if value is None or math.isnan(value):
            return False
        return value >= self.target if self.more else value <= self.target

    def plain_dict(self) -> dict[str, Any]:
        """As strict JSON: numbers that are not finite become null."""
        found: dict[str, Any] = finite({**asdict(self), "met": self.met})
        return found


Function = Callable[..., list[Row]]  # of a size and a device


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by name. `devices` says where it is worth running by default; one that `keeps`
    parts of its work takes the folder of results as `folder`, and resumes from there.
    """

    name: str
    about: str
    run: Function
    devices: tuple[str, ...] = ("cpu", "cuda")
    keeps: bool = False


def finite(value: Any) -> Any:
    """The same with None for every number that JSON does not know.

    >>> finite({"a": [1.0, float("nan")]})
    {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def aim(value: float, size: Size, device: torch.device, on: str = "cuda") -> float | None:
    """A target, which counts at real sizes on the kind of device it was set for.

    >>> aim(1.1, "quick", torch.device("cpu"), on="cpu"), aim(1.1, "full", torch.device("cpu"))
    (1.1, None)
    """
    return value if size != "tiny" and device.type in on.split() else None


def pick(size: Size, tiny: Any, quick: Any, full: Any) -> Any:
    """The value for a size.

    >>> pick("quick", 1, 2, 3)
    2
    """
    return {"tiny": tiny, "quick": quick, "full": full}[size]
