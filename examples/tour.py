"""The algebra of conceptors on handwritten digits, and ridge regression in two tasks.

Run with: make tour, or: python examples/tour.py
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits

from conceptors import Conceptor, ConceptorRidgeClassifier, similarity

torch.set_num_threads(1)  # fastest for matrices of this size
X, y = load_digits(return_X_y=True)
X = X / 16  # [1797, 64]
test = torch.arange(len(X)).numpy() % 4 == 0  # every fourth image is held out
IMAGES = torch.from_numpy(X)
DIGITS = [Conceptor.from_states(IMAGES[(y == k) & ~test], aperture=2.0) for k in range(10)]


def show_conceptors() -> None:
    print("1. A conceptor of each digit (aperture 2)")
    print("   The quota is the share of the 64-dimensional image space that a digit uses.\n")
    print("   digit   " + "".join(f"{k:6d}" for k in range(10)))
    print("   quota   " + "".join(f"{float(C.quota):6.2f}" for C in DIGITS))
    print("\n   Similarity between digits, from 0 (orthogonal) to 1 (multiples of each other):\n")
    for k, A in enumerate(DIGITS):
        print(
            f"       {k}   " + "".join(f"{float(similarity(A, B)):6.2f}" for B in DIGITS[: k + 1])
        )


def show_logic() -> None:
    A, B = DIGITS[3], DIGITS[8]
    print("\n2. NOT, OR, AND of A (digit 3) and B (digit 8)")
    print("   Share of a test image in the directions of each conceptor, in %:\n")
    print("                 quota  of a 3  of a 8  of a 0")
    rows = {"A": A, "B": B, "~A": ~A, "A | B": A | B, "A & B": A & B, "A & ~B": A & ~B}
    for name, C in rows.items():
        shares = []
        for digit in (3, 8, 0):
            images = IMAGES[(y == digit) & test]
            share = C.evidence(images) / images.square().sum(1)
            shares.append(f"{100 * float(share.mean()):8.0f}")
        print(f"   {name:12s} {float(C.quota):6.2f}" + "".join(shares))
    print(f"\n   ~(A | B) equals ~A & ~B: {(~(A | B)).allclose(~A & ~B)}.")
    print(f"   A | A equals A: {(A | A).allclose(A)}. Conceptors are soft, so evidence adds up.")


def learn_in_turn() -> None:
    print("\n3. Digits 0-4, then digits 5-9, without the images of 0-4: test accuracy in %\n")
    print("                           digits 0-4  digits 5-9")
    settings: dict[str, dict[str, Any]] = {
        "no conceptor": {"solution": "paper", "aperture": 1e-6, "regularization": 1e-3},
        "paper, simplified": {"solution": "simplified", "aperture": 8.0},
        "joint solution": {"solution": "joint"},
    }
    for name, options in settings.items():
        classifier = ConceptorRidgeClassifier(**options)
        for task in (y < 5, y >= 5):
            classifier.partial_fit(X[task & ~test], y[task & ~test])
        is_correct = classifier.predict(X) == y
        accuracies = [100 * is_correct[task & test].mean() for task in (y < 5, y >= 5)]
        print(f"   {name:22s}" + "".join(f"{value:12.1f}" for value in accuracies))
    print("\n   The joint solution equals ridge regression on all images at once.")


if __name__ == "__main__":
    show_conceptors()
    show_logic()
    learn_in_turn()
