"""GPM and SGP against their papers' formulas, written plainly in NumPy for one seed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conceptors.experiments.methods.relatives.layers import drawn_inputs, rows
from conceptors.experiments.methods.relatives.subspace import Subspace
from experiments.learners import CPU, learner
from helpers import normal


class Plain:
    """What both methods keep of one layer, as their authors write it, columns for samples."""

    def __init__(self) -> None:
        self.basis: Any = None
        self.importance: Any = None

    def add(self, R: Any, share: float, alpha: float) -> None:
        if self.basis is None:
            self.basis, self.importance = np.zeros((len(R), 0)), np.zeros(0)
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
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("method", ["gpm", "sgp"])
def test_directions_and_gradients_are_those_of_the_formulas(method: str, bias: bool) -> None:
    given: dict[str, Any] = {
        "threshold": 0.7,
        "input_threshold": 0.5,
        "increase": 0.05,
        "samples": 20,
    }
    extra: dict[str, Any] = {"coefficient": 3.0} if method == "sgp" else {}
    found = learner(method, [4], tasks=3, bias=bias, hidden="9,7", **given, **extra)
    plain = [Plain() for _ in found.layers]
    for k in range(3):
        found.learn(k)
        told = rows(found.model, found.layers, [drawn_inputs(found, k, 20)])
        for i, own in enumerate(found.layers):
            R = told[own.name][0].numpy().T
            plain[i].add(R, (0.7 if i else 0.5) + 0.05 * k, 3.0)
            scale = plain[i].importance if method == "sgp" else np.ones_like(plain[i].importance)
            wanted = plain[i].basis * scale @ plain[i].basis.T
            memory = found.memory[own.name]
            assert memory.ranks == [len(scale)]
            kept = memory.basis * memory.importance[:, None] @ memory.basis.mT
            np.testing.assert_allclose(kept[0].numpy(), wanted, atol=1e-9)
            gradient = normal(i, *own.shape)
            for parameter in own.parameters:
                parameter.grad = torch.zeros_like(parameter)
            own.set_gradient(gradient)
            found.gradients(0)
            assert torch.equal(own.gradient(), gradient)  # the first task learns freely
        before = [own.gradient().clone() for own in found.layers]
        found.gradients(k + 1)
        for own, old, reference in zip(found.layers, before, plain):
            scale = reference.importance if method == "sgp" else 1.0
            wanted = torch.eye(old.shape[2]) - torch.tensor(
                reference.basis * scale @ reference.basis.T
            )
            torch.testing.assert_close(own.gradient(), old @ wanted, rtol=1e-7, atol=1e-9)
    ranks = found.extras[0]["directions"]
    assert all(a <= b for counts in ranks.values() for a, b in pairwise(counts))
    assert 0 < ranks["layers.0"][0] < found.layers[0].shape[2]  # some directions are free
    each = [own.shape[2] + (method == "sgp") for own in found.layers]
    stored = sum(counts[-1] * n for counts, n in zip(ranks.values(), each))
    assert found.extras[0]["stored_numbers"] == stored


@pytest.mark.usefixtures("double")
def test_with_all_directions_nothing_is_forgotten() -> None:
    """Where rows span a part of the space, a step is orthogonal to all of them."""
    found = learner("gpm", [0, 1], threshold=1.0, samples=3, hidden="12", rate=0.5)
    found.learn(0)
    x = drawn_inputs(found, 0, 3)
    before = found.model(x).detach()
    moved = found.layers[0].matrix().clone()
    found.learn(1)
    torch.testing.assert_close(found.model(x).detach(), before, rtol=1e-8, atol=1e-9)
    assert not torch.allclose(found.layers[0].matrix(), moved, atol=1e-3)  # it did learn
    other = drawn_inputs(found, 1, 3)
    assert not torch.allclose(found.model(other), before, atol=1e-2)


@pytest.mark.parametrize("count", [4, 50])
def test_ranks_are_the_least_that_cover_enough(count: int) -> None:
    """With fewer rows than dimensions, and with more; seeds have ranks of their own."""
    R = normal(0, 3, count, 8) * torch.logspace(0, -3, 8, dtype=torch.float64)
    R[1] = normal(1, count, 8)
    R[2] = 0
    found = Subspace.empty(3, 8, CPU).extended(R, 0.9, lambda old, new: torch.ones_like(new))
    for i, rank in enumerate(found.ranks):
        energy = torch.linalg.svdvals(R[i]).square()
        assert float(energy[:rank].sum()) >= 0.9 * float(energy.sum())
        assert rank == 0 or float(energy[: rank - 1].sum()) < 0.9 * float(energy.sum())
        M = found.basis[i, :, :rank]
        torch.testing.assert_close(M.mT @ M, torch.eye(rank, dtype=torch.float64))
        assert not found.basis[i, :, rank:].any()
    assert found.ranks[0] < found.ranks[1]
    assert found.ranks[2] == 0
    everything = found.extended(normal(2, 3, 50, 8), 1.0, lambda old, new: torch.ones_like(new))
    assert everything.ranks == [8, 8, 8]
    assert everything.basis.shape == (3, 8, 8)


@pytest.mark.parametrize("rank", [2, 7])
def test_few_directions_are_multiplied_in_two_steps(rank: int) -> None:
    basis: Tensor = torch.linalg.qr(normal(0, 2, 8, rank)).Q
    space = Subspace(basis, torch.rand(2, rank, dtype=torch.float64))
    product = torch.eye(8, dtype=torch.float64)
    factors = space.factors(product)
    assert len(factors) == (2 if rank == 2 else 1)
    for factor in factors:
        product = product @ factor
    torch.testing.assert_close(product, basis * space.importance[:, None] @ basis.mT)


def test_sgp_with_a_large_coefficient_is_gpm() -> None:
    given: dict[str, Any] = {"threshold": 0.8, "samples": 30}
    gpm, sgp = learner("gpm", [0], **given), learner("sgp", [0], coefficient=1e9, **given)
    for k in range(2):
        gpm.learn(k)
        sgp.learn(k)
    for ours, theirs in zip(sgp.model.parameters(), gpm.model.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
