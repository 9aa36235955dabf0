"""The page to explore: an aperture to move, and what it does to digits or to a shield's layers."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conceptors.algebra.conceptor import Conceptor
from conceptors.experiments.scenarios.data import DataUnavailableError, load
from conceptors.report.measures import Array
from conceptors.report.page import fill
from conceptors.report.text import labels
from conceptors.report.theme import DASHES, look, write_file

SIDE = 8  # of images: ten correlation matrices fit in a page, and a browser factors one at once
_SAMPLES = 8  # images of each class
_LOOKS = 28  # all that differ
_CHOSEN = 8  # layers that are shown at first
_SCRIPTS = ("algebra.js", "curves.js", "explore.js")


@dataclass(frozen=True)
class Digits:
    """Small images of classes.

    Attributes:
        source: where they are from.
        pixels: `[n, SIDE²]`, whole numbers from 0 to `white`.
        labels: `[n]`.
    """

    source: str
    pixels: Tensor
    labels: Tensor
    white: int

    def states(self, label: int) -> Tensor:
        """The images of a class as rows in [0, 1], `[n, SIDE²]`."""
        return self.pixels[self.labels == label].double() / self.white


def load_digits() -> Digits:
    """scikit-learn's digits where it is installed, else MNIST in the same size.

    Raises:
        DataUnavailableError: neither is here, and MNIST cannot be fetched.
    """
    try:
        from sklearn.datasets import load_digits as load_small
    except ImportError:
        return _small_mnist()
    x, y = load_small(return_X_y=True)
    return Digits("scikit-learn's digits", torch.from_numpy(x), torch.from_numpy(y), 16)


def _small_mnist() -> Digits:
    """Without the empty rim of two pixels, then means of 3 x 3 pixels."""
    try:
        arrays = load("mnist")
    except DataUnavailableError as error:
        raise DataUnavailableError(
            f"{error}; or pip install 'conceptors[sklearn]', which brings small digits"
        ) from error
    inner = arrays.train_x[:10_000, 2:-2, 2:-2].double()
    means = inner.reshape(-1, SIDE, 3, SIDE, 3).mean((2, 4)).round()
    return Digits("MNIST", means.flatten(1), arrays.train_y[:10_000], 255)


def write_digits(path: Path, digits: Digits) -> Path:
    """The page about the conceptors of classes of digits, their NOT, OR and AND."""
    classes = digits.labels.unique().tolist()
    below = np.tril_indices(SIDE**2)
    moments, images = [], []
    for label in classes:
        x = digits.states(label)
        moments.append((x.mT @ x / len(x)).numpy()[below])
        kept = digits.pixels[digits.labels == label][:_SAMPLES]
        images.append(kept.repeat(_SAMPLES, 1)[:_SAMPLES].numpy())
    names = [str(label) for label in classes]
    data = {
        "kind": "digits",
        "side": SIDE,
        "white": digits.white,
        "samples": _SAMPLES,
        "moments": _packed(np.stack(moments), "<f8"),
        "images": _packed(np.stack(images), "u1"),
    }
    lede = (
        f"Images of {SIDE} × {SIDE} pixels from {digits.source}. Each class has a conceptor, a "
        f"soft projection on the directions that it uses. Choose classes and move the aperture."
    )
    about = (
        "The aperture α says how small a variance λ still counts: a direction has the singular "
        "value λ / (λ + α⁻²). With several classes, OR is what any of them uses, AND what all of "
        "them use."
    )
    pair = (3, 5) if len(names) > 5 else (0, 1)  # alike, and yet not the same
    page = _page("Conceptors of digits", lede, about, data, names, pair, "aperture", (-2, 3, 1))
    return write_file(path, page)


def write_layers(path: Path, title: str, tasks: int, layers: Mapping[str, Conceptor]) -> Path:
    """The page about what a shield claims in each layer.

    Raises:
        ValueError: nothing is claimed.
    """
    if not layers:
        raise ValueError(f"{title} claims nothing: call shield.remember(data) before shield.save")
    named = {name: c for name, c in layers.items() if c.dim > 2} or layers  # norms say little
    data = {"kind": "layers", "layers": [_layer(c) for c in named.values()]}
    words = "1 task is" if tasks == 1 else f"{tasks} tasks are"
    lede = f"{words} remembered in {len(named)} layers. What if the aperture had been another?"
    about = (
        "All apertures of the shield, times this factor: 1 is what is claimed now. The factor γ "
        "multiplies odds s / (1 - s) by γ². Hard conceptors have singular values of 0 and 1, which "
        "no aperture changes."
    )
    names = labels(list(named), 60)
    few = range(_CHOSEN)
    page = _page(title, lede, about, data, names, few, "aperture factor", (-2, 2, 0))
    return write_file(path, page)


def _page(
    title: str,
    lede: str,
    about: str,
    data: dict[str, Any],
    names: list[str],
    chosen: Collection[int],
    dial: str,
    decades: tuple[int, int, int],
) -> bytes:
    """`decades`: powers of ten from which, to which, and at which the aperture stands at first."""
    looks = [asdict(one) | {"dash": DASHES[one.dash]} for one in map(look, range(_LOOKS))]
    low, high, start = decades
    html = fill(
        "explore.html",
        *_SCRIPTS,
        first="aperture-dial",
        title=title,
        lede=lede,
        about=about,
        data=data | {"names": names, "looks": looks, "dial": dial},
        names=names,
        chosen=chosen,
        dial=dial[0].upper() + dial[1:],
        low=low,
        high=high,
        start=start,
    )
    return html.encode("utf-8", "replace")


def _layer(conceptor: Conceptor) -> dict[str, Any]:
    """All groups of a layer together: how many directions there are, are full, and other odds."""
    parts = conceptor.form.spectrum()
    groups = math.prod(conceptor.batch_shape)
    odds = parts.odds.double().flatten().cpu().sort(descending=True).values
    full = int(odds.isinf().sum())
    missing = groups * (parts.dim - parts.rank)
    soft = odds[(odds > 0) & ~odds.isinf()].clamp(max=torch.finfo(torch.float32).max)
    return {
        "dim": groups * parts.dim,
        "full": full + (missing if parts.rest else 0),
        "odds": _packed(soft.numpy(), "<f4"),
    }


def _packed(values: Array, kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode("ascii")
