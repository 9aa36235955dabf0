"""The paper's figures 3 and 4: images projected by a conceptor of other data and its negation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from conceptors import Conceptor
from conceptors.experiments.scenarios.data.read import load
from conceptors.experiments.scenarios.images import permutation
from conceptors.report import charts, theme

_SHOWN = 4


def pictures(results: dict[str, Any], folder: Path) -> list[tuple[str, Path]]:
    """Draw (caption, PNG file) for the paper's two scenarios if a method with conceptors ran.

    Raises:
        DataUnavailableError: MNIST is not on this machine and cannot be downloaded.
    """
    scenario = results["scenario"]
    has_conceptors = any(run.get("quota") for run in results["runs"])
    if scenario not in ("disjoint-mnist", "permuted-mnist") or not has_conceptors:
        return []
    arrays = load("mnist")
    images = arrays.train_x.flatten(1).double() / 255  # [60000, 784]
    labels = arrays.train_y
    digits = torch.stack([(labels == k).nonzero()[0, 0] for k in range(_SHOWN)])
    shown = images[digits]
    if scenario == "disjoint-mnist":
        aperture, other, name = 9.0, images[labels >= 5], "digits 5 to 9"
    else:
        order = permutation(results["runs"][0]["seed"], 1)  # that of the second task
        aperture, other, name = 4.0, images[:, order], "shuffled images"
    C = Conceptor.from_states(other, aperture)
    columns = {"images x": shown, "C x": C @ shown, "F x, F = NOT C": ~C @ shown}
    chart = charts.pictures({name: x.reshape(-1, 28, 28) for name, x in columns.items()})
    caption = (
        f"Left: digits 0 to {_SHOWN - 1}. Middle: projected by C, the conceptor of {name} "
        f"(aperture {aperture:g}). Right: projected by F = NOT C, the directions that stay free."
    )
    *_, png = theme.save(chart, folder / f"projected-{scenario}")
    return [(caption, png)]
