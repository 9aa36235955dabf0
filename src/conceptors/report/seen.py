"""The paper's figures 3 and 4: images as seen by a conceptor of other data and by its negation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from conceptors.algebra.conceptor import Conceptor
from conceptors.experiments.scenarios.data import load
from conceptors.experiments.scenarios.images import permutation
from conceptors.report import projected_images

_SHOWN = 4


def pictures(results: dict[str, Any], folder: Path) -> list[tuple[str, Path]]:
    """(caption, PNG file) for the two scenarios of the paper; nothing for others."""
    scenario = results["scenario"]
    if scenario not in ("disjoint-mnist", "permuted-mnist"):
        return []
    arrays = load("mnist")
    images = arrays.train_x.flatten(1).double() / 255  # [60000, 784]
    labels = arrays.train_y
    digits = torch.stack([(labels == k).nonzero()[0, 0] for k in range(_SHOWN)])
    shown = images[digits]
    if scenario == "disjoint-mnist":
        aperture, other, name = 9.0, images[labels >= 5], "C of digits 5 to 9"
    else:
        share = (results.get("identity") or {}).get("options", {}).get("shuffled")
        order = permutation(results["runs"][0]["seed"], 1, share)  # what the second task saw
        name = "C of shuffled images" if share is None else f"C of images shuffled by {share:.0%}"
        aperture, other = 4.0, images[:, order]
    conceptor = Conceptor.from_states(other, aperture)
    claimed = conceptor @ shown
    files = projected_images(
        shown.reshape(-1, 28, 28),
        claimed.reshape(-1, 28, 28),
        (shown - claimed).reshape(-1, 28, 28),
        folder / f"projected-{scenario}",
    )
    caption = (
        f"Digits 0 to {_SHOWN - 1} projected by {name} (aperture {aperture:g}) and by its negation "
        f"F: what is left for learning them after the other data."
    )
    return [(caption, next(file for file in files if file.suffix == ".png"))]
