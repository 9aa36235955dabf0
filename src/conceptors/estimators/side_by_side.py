"""Several lifts as one, each of its own part of the input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from conceptors._internal.precision import exactly
from conceptors.estimators.lift import Lift, constant, rms

_SEEN = 2048  # rows that tell how large features are


class SideBySide(Lift):
    """Features of the parts of `[x₁ | x₂ | …]`, side by side: `[f₁(x₁) | f₂(x₂) | …]`.

    For a readout of inputs of different kinds, such as an image and what a network makes of it.
    Each part's features are scaled by one number to a mean variance of 1 over the first data, so
    that parts count by how many features they have, whatever their size.

    Args:
        parts: lifts, in the order of their columns; `RandomFeatures`, `PatchFeatures` or others.
            Those that are fixed by data already stay as they are.

    Raises:
        TypeError: a part is no lift.
        ValueError: there are no parts, or one is there twice.

    >>> from conceptors import RandomFeatures, Readout
    >>> _ = torch.manual_seed(0)
    >>> pixels, hidden, labels = torch.rand(200, 64), torch.randn(200, 20), torch.arange(200) % 3
    >>> lift = SideBySide(RandomFeatures(64, 100, image=(8, 8)), RandomFeatures(20, 50))
    >>> lift.in_features, lift.out_features
    (84, 150)
    >>> readout = Readout(84, lift).learn(torch.cat([pixels, hidden], 1), labels)
    """

    fitted = ("scale",)
    scale: Tensor

    def __init__(self, *parts: Lift) -> None:
        if not parts:
            raise ValueError("SideBySide needs at least one lift")
        for part in parts:
            if not isinstance(part, Lift):
                raise TypeError(
                    f"SideBySide takes lifts, such as RandomFeatures(64, 1000), got "
                    f"{type(part).__name__}"
                )
        if len({id(part) for part in parts}) < len(parts):
            raise ValueError("SideBySide got one lift twice; make a copy, copy.deepcopy(lift)")
        super().__init__(sum(p.in_features for p in parts), sum(p.out_features for p in parts))
        self.parts = nn.ModuleList(parts)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"scale": (len(self.parts),)}

    @property
    def is_calibrated(self) -> bool:
        return super().is_calibrated and all(part.is_calibrated for part in self._lifts)

    @property
    def _lifts(self) -> list[Lift]:
        return [part for part in self.parts if isinstance(part, Lift)]

    def reset(self) -> None:
        super().reset()
        for part in self._lifts:
            part.reset()

    @exactly()
    def calibrate(self, rows: Tensor) -> None:
        """Fix all features by the first data `[n, in_features]`, all of them or none."""
        new = [part for part in self._lifts if not part.is_calibrated]
        try:
            sizes = []
            for part, own in zip(self._lifts, self._columns(rows)):
                if part in new:
                    part.calibrate(own)
                found = part(own[:: max(1, len(own) // _SEEN)])
                z = found - found.mean(0, dtype=torch.float64).to(found)
                sizes.append(rms(found) if constant(z, found) else rms(z))
            self._fix(scale=torch.stack(sizes).reciprocal())
        except Exception:
            for part in new:
                part.reset()
            raise

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """A scale without all parts is of no use."""
        if state_dict.get(f"{prefix}scale") is not None:
            needed = [
                f"{prefix}parts.{number}.{name}"
                for number, part in enumerate(self._lifts)
                for name in part.fitted
            ]
            missing_keys.extend(key for key in needed if key not in state_dict)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def forward(self, x: Tensor) -> Tensor:
        self.check_calibrated()
        pairs = zip(self._lifts, self._columns(x), self.scale)
        return torch.cat([part(own) * scale for part, own, scale in pairs], -1)

    def _columns(self, x: Tensor) -> tuple[Tensor, ...]:
        if x.shape[-1] != self.in_features:
            widths = [part.in_features for part in self._lifts]
            raise ValueError(
                f"these lifts take {widths} = {self.in_features} features side by side, got "
                f"{x.shape[-1]}"
            )
        found: tuple[Tensor, ...] = x.split([part.in_features for part in self._lifts], -1)
        return found
