"""CODE-CL against its paper's formulas, written plainly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.methods.relatives.codecl import wide_enough
from experiments.learners import learner
from experiments.relatives.plain import (
    LIKE,
    Own,
    effective,
    entering,
    matrices,
    own,
    trained,
    used_matrices,
)
from helpers import inverse_formula, reference_and, reference_or


def conceptor(X: Tensor, aperture: float, kept: float) -> Tensor:
    """As the authors' code: the aperture grows by φ(C, 1.1) until enough of the rows is kept."""
    one = torch.eye(X.shape[1])
    C = inverse_formula(X.T @ X / len(X), aperture)
    while (X @ C).norm(dim=1).sum() < kept * X.norm(dim=1).sum():
        C = C @ torch.linalg.inv(C + 1.1**-2 * (one - C))
    return C


def cut(C: Tensor, least: float) -> Tensor:
    values, vectors = torch.linalg.eigh((C + C.T) / 2)
    result: Tensor = vectors * torch.where(values < least, 0.0, values) @ vectors.T
    return result


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kept", [0.0, 0.9])
def test_tasks_are_learned_by_the_formulas(kept: float) -> None:
    least, aperture, overlap, free = 0.2, 2.0, 0.3, 2
    given: dict[str, Any] = {"least": least, "aperture": aperture, "kept": kept}
    given |= {"overlap": overlap, "free": free, "samples": 20, "hidden": "9"}
    codecl = learner("codecl", 3, tasks=3, **LIKE, **given)
    w = matrices(codecl)
    claimed = [torch.zeros(W.shape[1], W.shape[1]) for W in w]
    freed = stored = 0
    for k in range(3):
        x, _ = codecl.drawn_samples(k)
        parts: list[list[Own]] = [[], []]
        for i, X in enumerate(entering(w, x) if k else []):
            both = reference_and(claimed[i], cut(conceptor(X, aperture, kept), least))
            if both.trace() > overlap * claimed[i].trace():
                values, vectors = torch.linalg.eigh(both)
                parts[i] = [own(vectors[:, -free:][:, values[-free:] > 1e-9])]
                freed += 1
                stored += sum(tensor.numel() for tensor in parts[i][0])
        w, parts = trained(codecl, k, w, parts, claimed)
        codecl.learn(k)
        used = effective(w, parts)
        for ours, theirs in zip(matrices(codecl) + used_matrices(codecl, k), w + used):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
        for i, X in enumerate(entering(used, x)):
            claimed[i] = cut(reference_or(claimed[i], conceptor(X, aperture, kept)), least)
            ours = codecl.claimed[codecl.layers[i].name].matrix()
            torch.testing.assert_close(ours, claimed[i], rtol=1e-6, atol=1e-7)
    assert 0 < freed < 4
    for A in claimed:
        rank = int((torch.linalg.eigvalsh(A) > 1e-9).sum())
        stored += min(rank * (len(A) + 1), len(A) ** 2)
    assert codecl.extras["stored_numbers"] == stored


def test_of_nothing_nothing_is_claimed() -> None:
    assert float(wide_enough(torch.zeros(4, 3), 1.0, 0.9).quota) == 0.0
