"""Draw the two pictures of the tutorial into docs/assets.

Run with: python examples/figures.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from conceptors import Conceptor
from conceptors.report.charts import pictures
from conceptors.report.theme import LIGHT, draw

ASSETS = Path(__file__).resolve().parent.parent / "docs" / "assets"
BLUE, ORANGE = LIGHT["s0"], LIGHT["s1"]


def layer(points: Tensor) -> alt.Chart:
    """Points `[n, 2]` in a square from -1.3 to 1.3 without axes."""
    rows = [{"x": x, "y": y, "k": k} for k, (x, y) in enumerate(points.tolist())]
    span: dict[str, Any] = {"axis": None, "scale": alt.Scale(domain=[-1.3, 1.3], nice=False)}
    chart: alt.Chart = alt.Chart(alt.InlineData(values=rows), width=150, height=150)
    return chart.encode(x=alt.X("x:Q", **span), y=alt.Y("y:Q", **span))


def ellipse(conceptor: Conceptor, **style: Any) -> alt.Chart:
    """The unit circle as the conceptor maps it."""
    angle = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
    circle = conceptor @ torch.stack([angle.cos(), angle.sin()], 1)
    drawn: alt.Chart = layer(circle).mark_line(**style).encode(order="k:Q")
    return drawn


def draw_logic() -> None:
    """Two clouds of points, their conceptors, and what NOT, OR and AND make of them."""
    random = torch.Generator().manual_seed(1)
    cloud = torch.randn(150, 2, generator=random, dtype=torch.float64)
    turns = [torch.tensor([[np.cos(t), np.sin(t)], [-np.sin(t), np.cos(t)]]) for t in (0.35, 1.15)]
    wide = torch.tensor([0.45, 0.1], dtype=torch.float64)
    clouds = [(cloud * wide) @ turn for turn in turns]
    A, B = (Conceptor.from_states(points, aperture=4.0) for points in clouds)
    circle = ellipse(Conceptor.identity(2), color=LIGHT["rule"], strokeWidth=1)

    def both(width: float) -> list[alt.Chart]:
        dashed = ellipse(B, color=ORANGE, strokeWidth=width, strokeDash=[4, 2])
        return [circle, ellipse(A, color=BLUE, strokeWidth=width), dashed]

    dots = [
        layer(clouds[0]).mark_point(size=10, filled=True, color=BLUE),
        layer(clouds[1]).mark_point(size=12, shape="cross", strokeWidth=0.7, color=ORANGE),
    ]
    panels = {
        "samples": alt.layer(circle, *dots),
        f"A ({float(A.quota):.2f}) and B ({float(B.quota):.2f})": alt.layer(*both(2)),
    }
    for name, found in {"NOT: ~A": ~A, "OR: A | B": A | B, "AND: A & B": A & B}.items():
        shown = ellipse(found, color=LIGHT["ink"], strokeWidth=2.5)
        panels[f"{name} ({float(found.quota):.2f})"] = alt.layer(*both(1), shown)
    named = [
        panel.properties(title=alt.Title(name, anchor="middle", fontSize=11))
        for name, panel in panels.items()
    ]
    draw(alt.concat(*named, columns=5, spacing=8), ASSETS / "logic.svg")


def draw_seen() -> None:
    """A zero and a four, seen through the conceptor of zeros at several apertures."""
    X, y = load_digits(return_X_y=True)
    X = torch.from_numpy(X / 16)
    C = Conceptor.from_states(X[y == 0], aperture=1.0)
    seen = {"image x": Conceptor.identity(64)}
    for aperture in (0.5, 2.0, 8.0, 32.0):
        D = C.adapt(aperture)
        seen[f"C x, aperture {aperture:g}\nquota {float(D.quota):.2f}"] = D
    seen["NOT C x,\naperture 8"] = ~C.adapt(8.0)
    images = torch.stack([X[y == digit][0] for digit in (0, 4)])
    columns, notes = {}, {}
    for name, conceptor in seen.items():
        columns[name] = (conceptor @ images).reshape(-1, 8, 8).numpy()
        kept = conceptor.evidence(images) / images.square().sum(1)
        notes[name] = [f"evidence {share:.0%}" for share in kept.tolist()]
    draw(pictures(columns, notes=notes), ASSETS / "seen.svg")


if __name__ == "__main__":
    draw_logic()
    draw_seen()
    print(f"pictures in {ASSETS}")
