"""Compare the paper's closed form (section 2.2) with its simplified gradient (section 3.1).

The tasks are digits 0-4, then digits 5-9. Aperture and regularization are chosen on a validation
split.
Run with: python examples/exact_or_simplified.py
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from conceptors import ConceptorRidgeClassifier

APERTURES = [2.0**k for k in range(9)]  # 1 ... 256
REGULARIZATIONS = [10.0**k for k in range(-8, 4)]  # 1e-8 ... 1000
SPLITS = 10


def learn(X: Any, y: Any, **settings: Any) -> ConceptorRidgeClassifier:
    """Learn digits 0-4, then digits 5-9."""
    clf = ConceptorRidgeClassifier(**settings)
    for task in (y < 5, y >= 5):
        clf.partial_fit(X[task], y[task])
    return clf


def dropped_share(X: Any, y: Any, **settings: Any) -> float:
    """Compute E|W_inc A b|² / E|W_inc b|² in task 2, the term that the simplification drops."""
    clf = ConceptorRidgeClassifier(**settings)
    clf.partial_fit(X[y < 5], y[y < 5], classes=np.arange(10))
    before, claimed = np.column_stack([clf.coef_, clf.intercept_]), np.eye(65) - clf.free_space()
    clf.partial_fit(X[y >= 5], y[y >= 5])
    b = np.hstack([X[y >= 5], np.ones(((y >= 5).sum(), 1))])
    change = (np.column_stack([clf.coef_, clf.intercept_]) - before).T
    return float(np.square(b @ claimed @ change).sum() / np.square(b @ change).sum())


def main() -> None:
    torch.set_num_threads(1)  # fastest for matrices of this size
    warnings.simplefilter("ignore")  # the grid contains apertures that leave no free space
    X, y = load_digits(return_X_y=True)
    X = X / 16
    pairs = [{"aperture": a, "regularization": r} for a in APERTURES for r in REGULARIZATIONS]
    methods: dict[str, list[dict[str, Any]]] = {
        "as printed": [{**pair, "solution": "paper"} for pair in pairs],
        "simplified": [{**pair, "solution": "simplified"} for pair in pairs],
        "no conceptor": [{**pair, "solution": "paper", "aperture": 1e-6} for pair in pairs[:12]],
        "joint ridge": [{"regularization": r} for r in REGULARIZATIONS],
    }
    scores: dict[str, list[list[float]]] = {name: [] for name in methods}
    shares = []
    for split in range(SPLITS):
        X_learn, X_test, y_learn, y_test = train_test_split(
            X, y, test_size=0.25, stratify=y, random_state=split
        )
        X_train, X_valid, y_train, y_valid = train_test_split(
            X_learn, y_learn, test_size=0.25, stratify=y_learn, random_state=split
        )
        for name, grid in methods.items():
            best = max(
                grid, key=lambda s: float(learn(X_train, y_train, **s).score(X_valid, y_valid))
            )
            clf = learn(X_learn, y_learn, **best)
            parts = (y_test >= 0, y_test < 5, y_test >= 5)
            scores[name].append([100 * clf.score(X_test[p], y_test[p]) for p in parts])
            if name == "as printed":
                shares.append(dropped_share(X_learn, y_learn, **best))
        print(f"split {split}: " + ", ".join(f"{n} {row[-1][0]:.1f}" for n, row in scores.items()))
    print(f"\nTest accuracy in %, mean and standard deviation over {SPLITS} splits:")
    print(f"{'':12s} {'all digits':>12s} {'0-4':>12s} {'5-9':>12s}")
    for name, rows in scores.items():
        cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(np.mean(rows, 0), np.std(rows, 0, ddof=1))]
        print(f"{name:12s} " + " ".join(f"{cell:>12s}" for cell in cells))
    print(f"\nE|W_inc A b|² / E|W_inc b|² of the printed formula in task 2: {np.mean(shares):.2f}")
    print(f"({min(shares):.2f} to {max(shares):.2f}). The simplification assumes 0.")


if __name__ == "__main__":
    main()
