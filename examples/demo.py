"""Conceptors at work on handwritten digits: the algebra, and learning without forgetting.

Run with: make tour, or: python examples/demo.py [folder for the picture]
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from conceptors import (
    Conceptor,
    ConceptorClassifier,
    ConceptorRidgeClassifier,
    MemoryFullWarning,
    similarity,
)
from conceptors.report.charts import joined, lines, pictures
from conceptors.report.theme import LIGHT, Drawing, draw, look

Array = npt.NDArray[Any]

APERTURE = 2.0  # for looking at single digits; nothing is chosen by it
APERTURES = [2.0**k for k in range(9)]  # candidates for the classifiers: 1 ... 256
REGULARIZATIONS = [10.0**k for k in range(-6, 4)]  # 1e-6 ... 1000
QUOTAS = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
NOTHING = 1e-6  # an aperture so small that nothing is protected


class Part(NamedTuple):
    """Some of the images: rows of 64 pixels in [0, 1], and their digits."""

    X: Array
    y: Array

    def only(self, first: int, last: int) -> Part:
        kept = (self.y >= first) & (self.y <= last)
        return Part(self.X[kept], self.y[kept])

    def conceptor(self, aperture: float) -> Conceptor:
        return Conceptor.from_states(torch.from_numpy(self.X), aperture)


def say(text: str = "") -> None:
    print(text, flush=True)


def load() -> tuple[Part, Part, Part]:
    """Train, validation and test images: half, a quarter, a quarter."""
    X, y = load_digits(return_X_y=True)
    X_rest, X_test, y_rest, y_test = train_test_split(
        X / 16, y, test_size=0.25, stratify=y, random_state=0
    )
    X_train, X_valid, y_train, y_valid = train_test_split(
        X_rest, y_rest, test_size=1 / 3, stratify=y_rest, random_state=0
    )
    return Part(X_train, y_train), Part(X_valid, y_valid), Part(X_test, y_test)


# --- the algebra -------------------------------------------------------------------------


def show_conceptors(train: Part) -> None:
    digits = [train.only(k, k).conceptor(APERTURE) for k in range(10)]
    say(f"1. A conceptor of each digit (aperture {APERTURE:g})")
    say("   The quota is the share of the 64-dimensional image space that a digit claims.\n")
    say("   digit   " + "".join(f"{k:6d}" for k in range(10)))
    say("   quota   " + "".join(f"{float(c.quota):6.2f}" for c in digits))
    table = np.array([[float(similarity(a, b)) for b in digits] for a in digits])
    say("\n   Similarity between digits, from 0 (nothing in common) to 1 (the same directions):\n")
    say("           " + "".join(f"{k:6d}" for k in range(10)))
    for k, row in enumerate(table):
        say(f"       {k}   " + "".join(f"{value:6.2f}" for value in row[: k + 1]))
    np.fill_diagonal(table, np.nan)
    near = np.unravel_index(np.nanargmax(table), table.shape)
    far = np.unravel_index(np.nanargmin(table), table.shape)
    say(
        f"\n   Most alike are {min(near)} and {max(near)}, least alike {min(far)} and {max(far)}.\n"
    )


def show_logic(train: Part, test: Part) -> None:
    A, B = train.only(3, 3).conceptor(APERTURE), train.only(8, 8).conceptor(APERTURE)
    rows: list[tuple[str, Conceptor]] = [
        ("A = digit 3", A),
        ("B = digit 8", B),
        ("~A", ~A),
        ("A | B", A | B),
        ("A & B", A & B),
        ("A & ~B", A & ~B),
    ]
    shown = (3, 8, 0)
    say("2. NOT, OR, AND")
    say("   How much of a new image lies in what a conceptor claims, in % (mean of test images):\n")
    say("                   quota" + "".join(f"  of a {k}" for k in shown))
    for name, conceptor in rows:
        cells = []
        for k in shown:
            images = torch.from_numpy(test.only(k, k).X)
            share = conceptor.evidence(images) / images.square().sum(1)
            cells.append(f"{100 * float(share.mean()):8.0f}")
        say(f"   {name:14s} {float(conceptor.quota):7.2f}" + "".join(cells))
    holds = [(~(A | B)).allclose(~A & ~B), bool(A <= (A | B)), bool((A & B) <= A)]
    say(
        f"\n   ~(A | B) equals ~A & ~B: {holds[0]}. A <= A | B: {holds[1]}. A & B <= A: {holds[2]}."
    )
    say(f"   But A | A equals A: {(A | A).allclose(A)}. Conceptors are soft; twice is more.\n")


def show_evidence(train: Part, valid: Part, test: Part) -> None:
    def score(quota: float) -> float:
        return float(ConceptorClassifier(quota=quota).fit(*train).score(*valid))

    quota = max(QUOTAS, key=score)
    accuracy = ConceptorClassifier(quota=quota).fit(*train).score(*test)
    say("3. Classifying by evidence")
    say("   An image goes to the digit that claims it, and that no other digit claims.")
    say(f"   Test accuracy {accuracy:.1%} (quota {quota:g}, chosen on the validation images).\n")


# --- one task after another --------------------------------------------------------------

Learner = Callable[..., tuple[Any, Any]]


class Result(NamedTuple):
    """Accuracy in %: on 0-4 after task 1; on 0-4, on 5-9 and on all after task 2."""

    name: str
    settings: dict[str, Any]
    after_first: float
    old: float
    new: float
    everything: float
    quota: float


def in_turn(part: Part, **settings: Any) -> tuple[Any, Any]:
    """The classifier after digits 0-4, and after digits 5-9."""
    first = ConceptorRidgeClassifier(**settings).partial_fit(*part.only(0, 4))
    return first, deepcopy(first).partial_fit(*part.only(5, 9))


def at_once(part: Part, **settings: Any) -> tuple[Any, Any]:
    """The classifier of digits 0-4 alone, and of all digits together."""
    alone = ConceptorRidgeClassifier(**settings).fit(*part.only(0, 4))
    return alone, ConceptorRidgeClassifier(**settings).fit(*part)


def choose_and_test(
    name: str, learn: Learner, grid: list[dict[str, Any]], train: Part, valid: Part, test: Part
) -> Result:
    """The settings of the best accuracy on the validation images given; then one test."""
    settings = max(grid, key=lambda s: float(learn(train, **s)[1].score(*valid)))
    first, last = learn(train, **settings)
    old, new = test.only(0, 4), test.only(5, 9)
    return Result(
        name,
        settings,
        after_first=100 * first.score(*old),
        old=100 * last.score(*old),
        new=100 * last.score(*new),
        everything=100 * last.score(*test),
        quota=last.quota_,
    )


def learn_in_turn(train: Part, valid: Part, test: Part) -> list[Result]:
    say("4. Learning digits 0-4, then digits 5-9, without the images of 0-4")
    say("   One linear classifier of ten outputs. Aperture and regularization of every row were")
    say("   chosen by accuracy on the validation images alone: of digits 5-9 for 'refit', of all")
    say("   digits for the others. On the test images:\n")
    plain = [{"regularization": r} for r in REGULARIZATIONS]
    bare = [{"aperture": NOTHING, "solution": "paper", **r} for r in plain]
    pairs = [{"aperture": a, **r} for a in APERTURES for r in plain]
    methods: list[tuple[str, Learner, list[dict[str, Any]], Part]] = [
        ("refit", in_turn, bare, valid.only(5, 9)),
        ("timid refit", in_turn, bare, valid),
        ("as printed", in_turn, [{**p, "solution": "paper"} for p in pairs], valid),
        ("simplified", in_turn, [{**p, "solution": "simplified"} for p in pairs], valid),
        ("all at once", at_once, plain, valid),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryFullWarning)  # large apertures are candidates too
        results = [choose_and_test(*method[:3], train, method[3], test) for method in methods]
    say("   accuracy in %     after 0-4 |        after 5-9         |")
    say("                        on 0-4 | on 0-4   on 5-9   on all | chosen")
    for r in results:
        chosen = f"regularization {r.settings['regularization']:g}"
        if r.settings.get("aperture", NOTHING) > NOTHING:
            chosen = f"aperture {r.settings['aperture']:g}, {chosen}"
        after = f"{r.old:6.1f} {r.new:8.1f} {r.everything:8.1f}"
        say(f"   {r.name:16s} {r.after_first:11.1f} | {after} | {chosen}")
    say("\n   refit        learns the new images, no conceptor: the old digits are forgotten.")
    say(
        "   timid refit  the same under a penalty so large that its weights are nearly class means."
    )
    say("   as printed   the paper's algorithm with conceptors (section 2.2).")
    say("   simplified   conceptors, where the paper's simplified gradient vanishes (section 3.1).")
    say("   all at once  has all the images: the ceiling, up to chance.")
    quota = next(r.quota for r in results if r.name == "simplified")
    say(
        f"\n   Both tasks together claim {quota:.0%} of the input space (quota_ of 'simplified').\n"
    )
    return results


# --- the picture -------------------------------------------------------------------------


def spectra(train: Part) -> Drawing:
    C = train.only(5, 9).conceptor(1.0)
    curves = []
    for aperture in (1, 4, 16, 64, 256):
        D = C.adapt(float(aperture))
        name = f"aperture {aperture}: quota {float(D.quota):.2f}"
        values = {"x": range(1, 65), "value": D.singular_values.numpy(), "sd": np.nan}
        curves.append(pd.DataFrame({"series": name, "tip": name, **values}))
    looks = [look(k) for k in range(len(curves))]
    return lines(pd.concat(curves), looks, "direction", "singular value", (0, 1))


def projections(train: Part, test: Part, aperture: float) -> Drawing:
    C = train.only(5, 9).conceptor(aperture)
    images = torch.from_numpy(np.stack([test.only(digit, digit).X[0] for digit in range(5)]))
    columns = {"image": images, "seen by C": C @ images, "by NOT C": ~C @ images}
    shown = {name: seen.reshape(-1, 8, 8).numpy() for name, seen in columns.items()}
    return pictures(shown, side=66)


def accuracies(results: list[Result]) -> Drawing:
    rows = [
        {"method": result.name, "digits": digits, "accuracy": accuracy}
        for result in results
        for digits, accuracy in (("0-4", result.old), ("5-9", result.new))
    ]
    bars = alt.Chart(pd.DataFrame(rows), width=290, height=190).mark_bar()
    chart: alt.Chart = bars.encode(
        x=alt.X("accuracy:Q", title="test accuracy in %"),
        y=alt.Y("method:N", title=None, sort=None),
        yOffset="digits:N",
        color=alt.Color("digits:N", scale=alt.Scale(range=[LIGHT["s0"], LIGHT["s1"]])),
    )
    return chart


def draw_all(folder: Path, train: Part, test: Part, results: list[Result]) -> Path:
    parts = [
        ("(a) conceptors of digits 5-9", spectra(train)),
        ("(b) digits 0-4, C of 5-9, aperture 4", projections(train, test, aperture=4.0)),
        ("(c) after both tasks", accuracies(results)),
    ]
    chart = joined(parts, columns=3)
    draw(chart, folder / "demo.svg")
    return draw(chart, folder / "demo.png")


def main() -> None:
    start = time.perf_counter()
    torch.set_num_threads(1)  # fastest for matrices of this size
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "out"
    train, valid, test = load()
    say("Conceptors at work on scikit-learn's handwritten digits, images of 8 x 8 pixels.")
    sizes = [len(part.y) for part in (train, valid, test)]
    say("{} images to learn from, {} to choose settings with, {} to test.\n".format(*sizes))
    show_conceptors(train)
    show_logic(train, test)
    show_evidence(train, valid, test)
    results = learn_in_turn(train, valid, test)
    picture = draw_all(folder, train, test, results)
    say(f"The picture: {picture} (and .svg). Done in {time.perf_counter() - start:.0f} seconds.")


if __name__ == "__main__":
    main()
