"""What methods in closed form can be told."""

from __future__ import annotations

from dataclasses import dataclass

from conceptors.experiments.methods.settings import OwnSettings, setting


@dataclass(frozen=True)
class ClosedSettings(OwnSettings):
    """What comes before any method's own features, so that all of them see the same."""

    features: str = setting(
        "none", "what is looked at: inputs as they are, or patches of images", ("none", "patches")
    )
    filters: int = setting(400, "of the patch features")
    patch: int = setting(6, "size of a patch in pixels")
    grid: int = setting(3, "cells in each direction that answers to patches are averaged over")

    def check(self) -> None:
        super().check()
        for name, least in (("filters", 1), ("patch", 2), ("grid", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class LiftSettings(ClosedSettings):
    """Random features as `RandomFeatures` draws them."""

    lift: int = setting(2000, "random features of what is looked at, 0 for none")
    activation: str = setting("fourier", "of the random features", ("relu", "tanh", "fourier"))
    spread: float = setting(
        0.0, "how nonlinear they are, 0 for the usual (images 1, else fourier 0.7, others 1)"
    )
    smooth: float = setting(1.5, "blur of their weights on images in pixels, 0 for no image")
    shape: float = setting(0.25, "power of the data's covariance that weights are drawn with")
    unit: bool = setting(False, "scale inputs to the same length first; smooth ones always are")
