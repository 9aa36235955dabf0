"""GPM and SGP against their papers' formulas, written plainly in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from experiments.learners import learner
from helpers import normal


class Plain:
    """What both methods store of one layer, as their authors write it, columns for samples."""

    def __init__(self, dim: int) -> None:
        self.basis: Any = np.zeros((dim, 0))
        self.importance: Any = np.zeros(0)

    def add(self, R: Any, share: float, alpha: float) -> None:
        M, total = self.basis, (R**2).sum()
        onto = M @ M.T @ R
        U, S, _ = np.linalg.svd(onto, full_matrices=False)
        old = M.shape[1]
        surrogate = np.sqrt((M.T @ U[:, :old]) ** 2 @ S[:old] ** 2)
        U, S, _ = np.linalg.svd(R - onto, full_matrices=False)
        covered, rank = (total - (S**2).sum()) / total, 0
        while covered < share:
            covered += S[rank] ** 2 / total
            rank += 1
        self.basis = np.hstack([M, U[:, :rank]])
        strengths = np.hstack([surrogate, S[:rank]])
        new = (alpha + 1) * strengths / (alpha * strengths + strengths.max())
        new[:old] = np.clip(new[:old] + self.importance, 0, 1)
        self.importance = new


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("method", ["gpm", "sgp"])
def test_directions_and_gradients_are_those_of_the_formulas(method: str) -> None:
    given: dict[str, Any] = {"threshold": 0.7, "input_threshold": 0.5, "increase": 0.05}
    given |= {"samples": 20} | ({"coefficient": 3.0} if method == "sgp" else {})
    gpm = learner(method, 4, tasks=3, hidden="9,7", **given)
    plain = [Plain(layer.dim) for layer in gpm.layers]
    for k in range(3):
        gpm.learn(k)
        for i, (rows, one) in enumerate(zip(gpm.drawn_rows(k).values(), plain)):
            one.add(rows.numpy().T, (0.7 if i else 0.5) + 0.05 * k, 3.0)
        gpm.start_task(k + 1)
        for i, (layer, one) in enumerate(zip(gpm.layers, plain)):
            scale = one.importance if method == "sgp" else 1.0
            gradient = normal(i, layer.weight.shape[0], layer.dim)
            claimed = torch.tensor(one.basis * scale @ one.basis.T)
            wanted = gradient - gradient @ claimed
            torch.testing.assert_close(gpm.projected(gradient, layer), wanted)
    ranks = [one.basis.shape[1] for one in plain]
    assert [counts[-1] for counts in gpm.extras["directions"].values()] == ranks
    assert 0 < gpm.extras["directions"]["layers.0"][0] < 7  # some directions are free
    per_direction = [layer.dim + (method == "sgp") for layer in gpm.layers]
    assert gpm.extras["stored_numbers"] == sum(a * b for a, b in zip(ranks, per_direction))


@pytest.mark.usefixtures("double")
def test_with_all_directions_nothing_is_forgotten() -> None:
    """Where rows span a part of the space, a step is orthogonal to all of them."""
    gpm = learner("gpm", threshold=1.0, samples=3, hidden="12", rate=0.5)
    gpm.learn(0)
    x, _ = gpm.drawn_samples(0)
    before = gpm.model(x).detach()
    weight = gpm.layers[0].weight.detach().clone()
    gpm.learn(1)
    torch.testing.assert_close(gpm.model(x).detach(), before, rtol=1e-8, atol=1e-9)
    assert not torch.allclose(gpm.layers[0].weight, weight, atol=1e-3)  # it did learn
