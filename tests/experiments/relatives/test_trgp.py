"""TRGP against its paper's formulas, written plainly for one seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.methods.relatives.layers import drawn_samples
from conceptors.experiments.methods.relatives.trgp import largest, picked
from experiments.learners import learner
from experiments.relatives.plain import (
    LIKE,
    Own,
    effective,
    entering,
    loss,
    matrices,
    trained,
    used_matrices,
)
from helpers import normal


def grown(M: Tensor, R: Tensor, share: float) -> Tensor:
    """GPM's memory `[d, r]` with what rows R add."""
    rest = R - R @ M @ M.T
    _, values, directions = torch.linalg.svd(rest, full_matrices=False)
    covered, taken = float((R @ M).square().sum()), 0
    while covered < share * float(R.square().sum()):
        covered += float(values[taken] ** 2)
        taken += 1
    return torch.cat([M, directions[:taken].T], 1)


def strongest(M: Tensor, R: Tensor, share: float) -> Tensor:
    """The columns of M that hold most of R's energy."""
    energies = (R @ M).square().sum(0)
    chosen: list[int] = []
    for place in energies.argsort(descending=True).tolist():
        if energies[chosen].sum() >= share * R.square().sum():
            break
        chosen.append(place)
    return M[:, chosen]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("trust", "trusted"), [(0.5, 2), (0.2, 1), (0.2, 3)])
def test_tasks_are_learned_by_the_formulas(trust: float, trusted: int) -> None:
    tasks, share = 4, 0.7
    given: dict[str, Any] = {"threshold": share, "samples": 20, "trust": trust, "trusted": trusted}
    found = learner("trgp", [3], tasks=tasks, hidden="9", **LIKE, **given)
    w = matrices(found)
    memory = [torch.zeros(W.shape[1], 0) for W in w]
    spaces: list[list[Tensor]] = [[], []]  # M_j of every layer
    counts, learned = [], 0
    for k in range(tasks):
        x, y = (part[0] for part in drawn_samples(found, k, 20))
        live = [W.clone().requires_grad_() for W in w]
        gradients = torch.autograd.grad(loss(live, x, y), live)
        own: list[list[Own]] = [[], []]
        for i, g in enumerate(gradients):
            shares = [(float((g @ M).norm() / g.norm()), j) for j, M in enumerate(spaces[i])]
            for held, j in sorted(shares, reverse=True)[:trusted]:
                if held >= trust:
                    one = torch.eye(spaces[i][j].shape[1])
                    own[i].append(Own(spaces[i][j], one, one))
        counts.append([len(parts) for parts in own])
        learned += sum(o.mix.numel() for parts in own for o in parts)
        w, own = trained(found, k, w, own, [M @ M.T for M in memory])
        found.learn(k)
        used = effective(w, own)
        for ours, theirs in zip(matrices(found) + used_matrices(found, k), w + used):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
        for i, R in enumerate(entering(used, x)):
            memory[i] = grown(memory[i], R, share)
            spaces[i].append(strongest(memory[i], R, share))
    assert counts[0] == [0, 0]
    assert max(max(row) for row in counts) == min(trusted, tasks - 1)
    assert found.stored_numbers() == [learned + sum(M.numel() for M in memory)]


def test_nothing_trusted_is_gpm() -> None:
    none: dict[str, dict[str, Any]] = {"gpm": {}, "trgp": {"trusted": 0}}
    made = [learner(method, [0, 1], threshold=0.8, **own) for method, own in none.items()]
    for k in range(2):
        histories = [found.learn(k) for found in made]
        assert histories[0] == histories[1]
    assert made[0].stored_numbers() == made[1].stored_numbers()


def test_trust_differs_between_seeds_and_they_do_not_meet() -> None:
    settings: dict[str, Any] = {"threshold": 0.6, "samples": 20, "trust": 0.75}
    settings |= {"hidden": "9", "rate": 0.1}
    seeds = list(range(5))
    together = learner("trgp", seeds, tasks=3, **settings)
    for k in range(3):
        together.learn(k)
    ranks = [
        tuple(part.ranks[i].tolist() for own in together.parts for part in own.values())
        for i in range(len(seeds))
    ]
    assert len(set(map(str, ranks))) > 1
    stored = together.stored_numbers()
    for i, seed in enumerate(seeds):
        alone = learner("trgp", [seed], tasks=3, **settings)
        for k in range(3):
            alone.learn(k)
        assert alone.stored_numbers() == [stored[i]]
        for k in range(3):
            x, _ = drawn_samples(alone, k, 20)
            with torch.no_grad():
                ours = together.outputs(x.expand(len(seeds), -1, -1), k)[i]
                torch.testing.assert_close(ours, alone.outputs(x, k)[0], rtol=1e-3, atol=1e-4)


def test_largest_energies_and_their_columns() -> None:
    energies = torch.tensor([[1.0, 5.0, 0.0, 3.0], [2.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    found = largest(energies, torch.tensor([7.0, 3.0, 0.0]))
    assert found.int().tolist() == [[0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]]
    basis = normal(0, 3, 2, 4)
    columns = picked(basis, found[:, None])
    assert columns.shape == (3, 1, 2, 2)
    torch.testing.assert_close(columns[0, 0], basis[0][:, [1, 3]])
    assert not bool(columns[2].any())


def test_what_the_last_step_left_is_not_among_the_first_gradients() -> None:
    made = learner("trgp", [0, 1])
    made.learn(0)
    made.start_task(1)
    first: list[Tensor] = []
    again: list[Tensor] = []
    for found, left in ((first, None), (again, 1e3)):
        for parameter in made.model.parameters():
            parameter.grad = None if left is None else torch.full_like(parameter, left)
        found.extend(made._first_gradients(1).values())
    assert len(first) == len(again) > 0
    for a, b in zip(first, again):
        assert torch.equal(a, b)
