"""CODE-CL against its paper's formulas, written plainly for one seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.methods.relatives.codecl import pruned, wide_enough
from conceptors.experiments.methods.relatives.layers import drawn_inputs
from experiments.learners import learner
from experiments.relatives.plain import (
    LIKE,
    Own,
    effective,
    entering,
    matrices,
    trained,
    used_matrices,
)
from helpers import inverse_formula, normal, reference_and, reference_or


def conceptor(X: Tensor, aperture: float, kept: float) -> Tensor:
    """As the authors' code: the aperture grows by φ(C, 1.1) until enough of the rows is kept."""
    one = torch.eye(X.shape[1])
    C = inverse_formula(X.T @ X / len(X), aperture)
    while (X @ C).norm(dim=1).sum() < kept * X.norm(dim=1).sum():
        C = C @ torch.linalg.inv(C + 1.1**-2 * (one - C))
    return C


def cut(C: Tensor, least: float) -> Tensor:
    values, vectors = torch.linalg.eigh((C + C.T) / 2)
    left: Tensor = vectors * torch.where(values < least, 0.0, values) @ vectors.T
    return left


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kept", [0.0, 0.9])
def test_tasks_are_learned_by_the_formulas(kept: float) -> None:
    least, aperture, overlap, free = 0.2, 2.0, 0.3, 2
    given: dict[str, Any] = {"least": least, "aperture": aperture, "kept": kept}
    given |= {"overlap": overlap, "free": free}
    found = learner("codecl", [3], tasks=3, hidden="9", samples=20, **LIKE, **given)
    w = matrices(found)
    claimed = [torch.zeros(W.shape[1], W.shape[1]) for W in w]
    freed = kept_for_tasks = 0
    for k in range(3):
        x = drawn_inputs(found, k, 20)[0]
        own: list[list[Own]] = [[], []]
        for i, X in enumerate(entering(w, x) if k else []):
            both = reference_and(claimed[i], cut(conceptor(X, aperture, kept), least))
            if both.trace() > overlap * claimed[i].trace():
                values, vectors = torch.linalg.eigh(both)
                U = vectors[:, -free:][:, values[-free:] > 1e-9]
                zero = torch.zeros(U.shape[1], U.shape[1])
                own[i] = [Own(U, zero, zero)]
                freed += 1
                kept_for_tasks += U.numel() + zero.numel()
        w, own = trained(found, k, w, own, claimed)
        found.learn(k)
        used = effective(w, own)
        for ours, theirs in zip(matrices(found) + used_matrices(found, k), w + used):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
        for i, (X, layer) in enumerate(zip(entering(used, x), found.layers)):
            claimed[i] = cut(reference_or(claimed[i], conceptor(X, aperture, kept)), least)
            torch.testing.assert_close(
                found.claimed[layer].matrix()[0], claimed[i], rtol=1e-6, atol=1e-7
            )
    assert 0 < freed < 4
    sizes = [(len(A), int((torch.linalg.eigvalsh(A) > 1e-9).sum())) for A in claimed]
    kept_of_all = sum(min(rank * (dim + 1), dim**2) for dim, rank in sizes)
    assert found.stored_numbers() == [kept_of_all + kept_for_tasks]


def test_an_aperture_grows_until_enough_is_kept_for_every_seed() -> None:
    rows = normal(0, 3, 40, 6) * torch.tensor([3.0, 0.1, 0.01])[:, None, None]
    made = wide_enough(rows, 1.0, 0.9)
    for i in range(3):
        plain = conceptor(rows[i], 1.0, 0.9)
        torch.testing.assert_close(made.matrix()[i], plain, rtol=1e-6, atol=1e-8)
    assert wide_enough(rows, 1.0, 0.0).allclose(type(made).from_states(rows, 1.0))
    assert float(wide_enough(torch.zeros(1, 4, 3), 1.0, 0.9).quota) == 0.0


def test_small_singular_values_are_cut() -> None:
    rows = normal(1, 2, 30, 5) * torch.tensor([2.0, 1.0, 0.5, 0.1, 0.0])
    made = type(wide_enough(rows, 1.0, 0.0)).from_states(rows, 1.0)
    left = pruned(made, 0.3)
    for i in range(2):
        torch.testing.assert_close(left.matrix()[i], cut(made.matrix()[i], 0.3))
    assert left.rank < 5
    assert float(pruned(made, 0.99).quota.sum()) == 0.0


def test_overlap_differs_between_seeds_and_they_do_not_meet() -> None:
    seeds = list(range(5))
    settings: dict[str, Any] = {"samples": 20, "hidden": "9", "rate": 0.1}
    settings |= {"aperture": 1.2, "kept": 0.0, "free": 2, "overlap": 0.4}
    together = learner("codecl", seeds, tasks=3, **settings)
    for k in range(3):
        together.learn(k)
    ranks = [part.ranks[:, 0].tolist() for own in together.parts for part in own.values()]
    assert any(len(set(row)) > 1 for row in ranks), ranks
    stored = together.stored_numbers()
    for i, seed in enumerate(seeds):
        alone = learner("codecl", [seed], tasks=3, **settings)
        for k in range(3):
            alone.learn(k)
        assert alone.stored_numbers() == [stored[i]]
        for k in range(3):
            x = drawn_inputs(alone, k, 20)
            with torch.no_grad():
                ours = together.outputs(x.expand(len(seeds), -1, -1), k)[i]
                torch.testing.assert_close(ours, alone.outputs(x, k)[0], rtol=1e-3, atol=1e-4)


def test_freed_directions_may_begin_at_random() -> None:
    """As the weights of a linear layer, each seed by itself; at 0 they would change nothing."""
    given: dict[str, Any] = {"samples": 20, "overlap": 0.0, "free": 3, "steps": 1, "rate": 0.0}
    together = learner("codecl", [3, 4], hidden="9", start="random", **given)
    alone = learner("codecl", [4], hidden="9", start="random", **given)
    for found in (together, alone):
        found.learn(0)
        found.learn(1)
    layer = next(iter(together.parts[1]))
    mixes = together.parts[1][layer].mix.detach()
    for mix, rank in zip(mixes[:, 0], together.parts[1][layer].ranks[:, 0].tolist()):
        drawn = (mix + torch.eye(3))[:rank, :rank]
        assert 0 < float(drawn.abs().max()) <= 3**-0.5
        assert bool((mix[rank:] == 0).all())
    (own,) = (part for other, part in alone.parts[1].items() if other.name == layer.name)
    torch.testing.assert_close(own.mix[0], mixes[1])
    same = learner("codecl", [3], hidden="9", **given)
    same.learn(0)
    same.learn(1)
    assert all(bool((part.mix == 0).all()) for part in same.parts[1].values())
