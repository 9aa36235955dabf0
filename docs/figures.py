"""Draw figures of the docs into docs/assets.

logic.svg and seen.svg belong to "The algebra in ten minutes", projected-disjoint.png and
projected-permuted.png (the paper's figures 3 and 4, from MNIST) to "Command line", and
finetuning.svg (from results/finetuning.csv) to "Fine-tuning a pretrained model".
Run with: python docs/figures.py
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from conceptors import Conceptor
from conceptors.scenarios import build

ASSETS = Path(__file__).parent / "assets"
BLUE, ORANGE, INK, GREY = "#2563a8", "#c2571a", "#1d2430", "#c5cad1"
LEAST = 50  # exact answers in percent; below, no skill is learned
TICKS = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]
SHADES = [INK, "#8a6d1d", "#9a4a86", ORANGE, BLUE, "#0d8a8a", "#5b7f2b"]


def cloud(points: Tensor) -> alt.Chart:
    """Points `[n, 2]` in a square from -1.3 to 1.3 without axes."""
    rows = [{"x": x, "y": y, "k": k} for k, (x, y) in enumerate(points.tolist())]
    span: dict[str, Any] = {"axis": None, "scale": alt.Scale(domain=[-1.3, 1.3], nice=False)}
    chart = alt.Chart(alt.InlineData(values=rows), width=150, height=150)
    return chart.encode(x=alt.X("x:Q", **span), y=alt.Y("y:Q", **span))


def ellipse(conceptor: Conceptor, **style: Any) -> alt.Chart:
    """The unit circle as the conceptor maps it."""
    angle = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
    circle = conceptor @ torch.stack([angle.cos(), angle.sin()], 1)
    return cloud(circle).mark_line(**style).encode(order="k:Q")


def titled(panel: alt.Chart, *lines: str) -> alt.Chart:
    return panel.properties(title=alt.Title(list(lines), anchor="middle", fontSize=11))


def draw_logic() -> None:
    """Two clouds of points, their conceptors, and NOT, OR and AND of these."""
    points = torch.randn(150, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    points = points * torch.tensor([0.45, 0.1], dtype=torch.float64)
    clouds = []
    for angle in torch.tensor([0.35, 1.15], dtype=torch.float64):
        turn = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()]).reshape(2, 2)
        clouds.append(points @ turn)
    A, B = (Conceptor.from_states(rows, aperture=4.0) for rows in clouds)
    circle = ellipse(Conceptor.identity(2), color=GREY, strokeWidth=1)
    dots = [
        cloud(clouds[0]).mark_point(size=10, filled=True, color=BLUE),
        cloud(clouds[1]).mark_point(size=12, shape="cross", strokeWidth=0.7, color=ORANGE),
    ]
    thin = [circle, ellipse(A, color=BLUE, strokeWidth=1)]
    thin.append(ellipse(B, color=ORANGE, strokeWidth=1, strokeDash=[4, 2]))
    panels = [
        titled(alt.layer(circle, *dots), "samples"),
        titled(alt.layer(*thin), f"A ({float(A.quota):.2f}) and B ({float(B.quota):.2f})"),
    ]
    for name, C in {"NOT: ~A": ~A, "OR: A | B": A | B, "AND: A & B": A & B}.items():
        panel = alt.layer(*thin, ellipse(C, color=INK, strokeWidth=2.5))
        panels.append(titled(panel, f"{name} ({float(C.quota):.2f})"))
    save(alt.concat(*panels, columns=5, spacing=8), "logic.svg")


def picture(image: Tensor) -> alt.Chart:
    """A square image `[side²]`; black is 0, white is 1."""
    side = round(len(image) ** 0.5)
    rows = [{"x": k % side, "y": k // side, "v": v} for k, v in enumerate(image.tolist())]
    grey = alt.Color("v:Q", scale=alt.Scale(domain=[0, 1], range=["black", "white"], clamp=True))
    chart = alt.Chart(alt.InlineData(values=rows), width=88, height=88).mark_rect()
    axes = {"x": alt.X("x:O", axis=None), "y": alt.Y("y:O", axis=None)}
    return chart.encode(**axes, color=grey.legend(None))


def draw_seen() -> None:
    """A zero and a four, seen through the conceptor of zeros at several apertures."""
    X, y = load_digits(return_X_y=True)
    X = torch.from_numpy(X / 16)
    C = Conceptor.from_states(X[y == 0], aperture=1.0)
    views = {"image x": Conceptor.identity(64)}
    for aperture in (0.5, 2.0, 8.0, 32.0):
        views[f"C x, aperture {aperture:g}"] = C.adapt(aperture)
    views["NOT C x, aperture 8"] = ~C.adapt(8.0)
    panels = []
    for digit in (0, 4):
        image = X[y == digit][0]
        for name, D in views.items():
            share = float(D.evidence(image) / image.square().sum())
            notes = (f"quota {float(D.quota):.2f}", f"evidence {share:.0%}")
            panels.append(titled(picture(D @ image), name, *notes))
    save(alt.concat(*panels, columns=len(views), spacing=8), "seen.svg")


def draw_projected() -> None:
    """Digits 0 to 3, projected by the conceptor of the second task's images and its negation."""
    for name, aperture in (("disjoint", 9.0), ("permuted", 4.0)):
        tasks = build(f"{name}-mnist", 0, tasks=2).tasks
        (x, y), (other, _) = (task.train.take(torch.arange(len(task.train))) for task in tasks)
        C = Conceptor.from_states(other.flatten(1).double(), aperture)
        panels = []
        for digit in range(4):
            image = x[y == digit][0].flatten().double()
            views = {"image x": image, "C x": C @ image, "NOT C x": ~C @ image}
            panels += [titled(picture(view), title) for title, view in views.items()]
        save(alt.concat(*panels, columns=3, spacing=8), f"projected-{name}.png")


def draw_finetuning(size: str = "small") -> None:
    """Skill learned against knowledge lost: a line per method through its learning rates."""
    names = {"full": "full fine-tuning", "lora": "LoRA", "replay": "replay", "kl": "KL divergence"}
    names |= {"shield": "Shield(model)", "shield, energy": "Shield(model, Energy(0.95))"}
    names |= {"free_lora": "LoRA in the free space"}
    runs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with (ASSETS.parents[1] / "results" / "finetuning.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["size"], row["skills"]) == (size, "banking77") and row["method"] in names:
                point = float(row["test_rise"]), float(row["test_exact"])
                runs.setdefault((names[row["method"]], row["settings"]), []).append(point)
    means = [(name, *map(mean, zip(*points))) for (name, _), points in runs.items()]
    rows = [dict(zip("nxy", point)) for point in means if point[2] >= LEAST]
    color = alt.Color("n:N", title=None, scale=alt.Scale(domain=[*names.values()], range=SHADES))
    x = alt.X("x:Q", title="knowledge lost: rise of cross-entropy on other texts (log scale)")
    x = x.scale(type="log", nice=False, padding=12).axis(values=TICKS, grid=False)
    y = alt.Y("y:Q", title="skill learned: exact answers, %", scale=alt.Scale(domain=[LEAST, 95]))
    chart = alt.Chart(alt.InlineData(values=rows), width=420, height=260).encode(x, y, color)
    points = chart.mark_point(filled=True, size=45)
    save(chart.mark_line(strokeWidth=1.5) + points, "finetuning.svg")


def save(chart: alt.Chart, name: str) -> None:
    chart.configure_view(stroke=None).save(ASSETS / name)


if __name__ == "__main__":
    draw_logic()
    draw_seen()
    draw_projected()
    draw_finetuning()
