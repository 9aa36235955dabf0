"""Draw the two pictures of the tutorial into docs/assets.

Run with: python examples/figures.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits

from conceptors import Conceptor

mpl.use("Agg")
mpl.rcParams.update({"font.size": 10, "svg.hashsalt": "conceptors", "svg.fonttype": "path"})
ASSETS = Path(__file__).resolve().parent.parent / "docs" / "assets"


def ellipse(axes: Any, conceptor: Conceptor, **style: Any) -> None:
    """The unit circle as the conceptor maps it."""
    angle = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
    axes.plot(*(conceptor @ torch.stack([angle.cos(), angle.sin()], 1)).T, **style)


def draw_logic() -> None:
    """Two clouds of points, their conceptors, and what NOT, OR and AND make of them."""
    random = torch.Generator().manual_seed(1)
    cloud = torch.randn(150, 2, generator=random, dtype=torch.float64)
    turns = [torch.tensor([[np.cos(t), np.sin(t)], [-np.sin(t), np.cos(t)]]) for t in (0.35, 1.15)]
    wide = torch.tensor([0.45, 0.1], dtype=torch.float64)
    clouds = [(cloud * wide) @ turn for turn in turns]
    A, B = (Conceptor.from_states(points, aperture=4.0) for points in clouds)
    results = {"NOT: ~A": ~A, "OR: A | B": A | B, "AND: A & B": A & B}
    figure, panels = plt.subplots(1, 5, figsize=(10, 2.5), layout="constrained")
    names = ["samples", f"A ({float(A.quota):.2f}) and B ({float(B.quota):.2f})"]
    names += [f"{name} ({float(c.quota):.2f})" for name, c in results.items()]
    for axes, name in zip(panels, names):
        ellipse(axes, Conceptor.identity(2), color="0.8", linewidth=0.8)
        axes.set(title=name, aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), xticks=[])
        axes.set_yticks([])
        axes.title.set_fontsize(10)
    for points, marker, colour in zip(clouds, "ox", ("C0", "C1")):
        panels[0].scatter(*points.T, s=7, marker=marker, color=colour, linewidth=0.7, alpha=0.7)
    for axes in panels[1:]:
        thin = 1.6 if axes is panels[1] else 0.8
        ellipse(axes, A, color="C0", linewidth=thin)
        ellipse(axes, B, color="C1", linewidth=thin, linestyle="--")
    for axes, found in zip(panels[2:], results.values()):
        ellipse(axes, found, color="black", linewidth=2.2)
    figure.savefig(ASSETS / "logic.svg", metadata={"Date": None})


def draw_seen() -> None:
    """A zero and a four, seen through the conceptor of zeros at several apertures."""
    X, y = load_digits(return_X_y=True)
    X = torch.from_numpy(X / 16)
    apertures = [0.5, 2.0, 8.0, 32.0]
    C = Conceptor.from_states(X[y == 0], aperture=1.0)
    seen: list[tuple[str, Conceptor]] = [("image x", Conceptor.identity(64))]
    for a in apertures:
        D = C.adapt(a)
        seen.append((f"C x, aperture {a:g}\nquota {float(D.quota):.2f}", D))
    seen.append(("NOT C x,\naperture 8", ~C.adapt(8.0)))
    figure, panels = plt.subplots(2, len(seen), figsize=(10, 3.7), layout="constrained")
    for row, digit in zip(panels, (0, 4)):
        image = X[y == digit][0]
        for axes, (name, conceptor) in zip(row, seen):
            shown = (conceptor @ image).reshape(8, 8)
            axes.imshow(shown, cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            if digit == 0:
                axes.set_title(name, fontsize=10)
            kept = float(conceptor.evidence(image) / image.square().sum())
            axes.set_xlabel(f"evidence {kept:.0%}", fontsize=9)
    figure.savefig(ASSETS / "seen.svg", metadata={"Date": None})


if __name__ == "__main__":
    draw_logic()
    draw_seen()
    print(f"pictures in {ASSETS}")
