"""The page to explore: a slider for the aperture of digits or of a shield's layers."""

import base64
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conceptors import Conceptor
from conceptors._internal.checks import needs
from conceptors.report.page import fill
from conceptors.report.text import labels
from conceptors.report.theme import DASHES, look
from conceptors.shield.state import read_claims

_SAMPLES = 8  # images of each class
_LOOKS = 28  # this many curves look different


def digits() -> str:
    """Return the page about the conceptors of scikit-learn's digits, their NOT, OR and AND.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    with needs("sklearn", "the digits need scikit-learn, which is not installed"):
        from sklearn.datasets import load_digits
    pixels, classes = load_digits(return_X_y=True)
    return digits_page(torch.from_numpy(pixels), torch.from_numpy(classes))


def digits_page(pixels: Tensor, classes: Tensor) -> str:
    """Return the page about classes of images `[n, side²]` with whole numbers from 0 to 16."""
    side = round(pixels.shape[1] ** 0.5)
    numbers = classes.unique().tolist()
    below = np.tril_indices(side**2)
    moments, images = [], []
    for number in numbers:
        x = pixels[classes == number].double()
        moments.append((x.mT @ x / len(x) / 16**2).numpy()[below])
        images.append(x.repeat(_SAMPLES, 1)[:_SAMPLES].numpy())
    data = {
        "kind": "digits",
        "side": side,
        "white": 16,
        "samples": _SAMPLES,
        "moments": _packed(np.stack(moments), "<f8"),
        "images": _packed(np.stack(images), "u1"),
    }
    return _page("Conceptors of digits", data, [str(number) for number in numbers])


def layers(file: Path) -> str:
    """Return the page about what a saved shield protects in each layer.

    Raises:
        ValueError: the file is not a shield, or it protects nothing.
    """
    tasks, conceptors = read_claims(file)
    if not conceptors:
        raise ValueError(f"{file} protects nothing: call shield.remember(data) before shield.save")
    wide = {name: c for name, c in conceptors.items() if c.dim > 2}  # no norms
    large = wide or conceptors
    data = {"kind": "layers", "layers": [_layer(conceptor) for conceptor in large.values()]}
    return _page(file.name, data, labels(list(large), 60), tasks)


def _page(title: str, data: dict[str, Any], names: list[str], tasks: int = 0) -> str:
    looks = [asdict(one) | {"dash": DASHES[one.dash]} for one in map(look, range(_LOOKS))]
    return fill(
        "explore.html",
        *("algebra.js", "curves.js", "explore.js"),
        title=title,
        data=data | {"names": names, "looks": looks},
        tasks=tasks,
    )


def _layer(conceptor: Conceptor) -> dict[str, Any]:
    """Pack all groups of a layer: the number of directions, and the odds that are not 0."""
    s = conceptor.singular_values.double().flatten().cpu().sort(descending=True).values
    odds = s / (1 - s)
    return {"dim": len(s), "odds": _packed(odds[odds > 0].numpy(), "<f4")}


def _packed(values: Any, kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode("ascii")
