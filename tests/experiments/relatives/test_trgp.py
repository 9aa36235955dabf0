"""TRGP against its paper's formulas, written plainly; what TRGP and CODE-CL have in common."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.learners import learner
from experiments.relatives.plain import (
    LIKE,
    Own,
    effective,
    entering,
    loss,
    matrices,
    own,
    trained,
    used_matrices,
)

FULL: dict[str, dict[str, Any]] = {  # claims all directions of a task's samples, to rounding
    "trgp": {"threshold": 1.0, "samples": 0},
    "codecl": {"aperture": 1e6, "kept": 0.0, "least": 0.0, "samples": 0, "free": 3, "overlap": 0.2},
}


def grown(M: Tensor, R: Tensor, share: float) -> Tensor:
    """GPM's memory `[d, r]` with what rows R add."""
    _, values, directions = torch.linalg.svd(R - R @ M @ M.T, full_matrices=False)
    covered, count = float((R @ M).square().sum()), 0
    while covered < share * float(R.square().sum()):
        covered += float(values[count] ** 2)
        count += 1
    return torch.cat([M, directions[:count].T], 1)


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
    trgp = learner("trgp", 3, tasks=tasks, hidden="9", **LIKE, **given)
    w = matrices(trgp)
    memory = [torch.zeros(W.shape[1], 0) for W in w]
    spaces: list[list[Tensor]] = [[], []]  # M_j of every layer
    counts, stored = [], 0
    for k in range(tasks):
        x, y = trgp.drawn_samples(k)
        live = [W.clone().requires_grad_() for W in w]
        parts: list[list[Own]] = [[], []]
        for i, g in enumerate(torch.autograd.grad(loss(live, x, y), live)):
            shares = [(float((g @ M).norm() / g.norm()), j) for j, M in enumerate(spaces[i])]
            best = sorted(shares, reverse=True)[:trusted]
            parts[i] = [own(spaces[i][j]) for value, j in best if value >= trust]
        counts.append([len(some) for some in parts])
        stored += sum(o.mix.numel() for some in parts for o in some)
        w, parts = trained(trgp, k, w, parts, [M @ M.T for M in memory])
        trgp.learn(k)
        used = effective(w, parts)
        for ours, theirs in zip(matrices(trgp) + used_matrices(trgp, k), w + used):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
        for i, R in enumerate(entering(used, x)):
            memory[i] = grown(memory[i], R, share)
            spaces[i].append(strongest(memory[i], R, share))
    assert counts[0] == [0, 0]
    assert max(max(row) for row in counts) == min(trusted, tasks - 1)
    assert trgp.extras["stored_numbers"] == stored + sum(M.numel() for M in memory)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("method", list(FULL))
def test_earlier_tasks_keep_their_outputs(method: str) -> None:
    few: dict[str, Any] = {"inputs": 16, "n": 10, "hidden": "20", "rate": 0.1, "steps": 20}
    both = learner(method, **few, **FULL[method])
    x, _ = both.drawn_samples(0)
    both.learn(0)
    before, wanted = matrices(both), both.outputs(x, 0)
    both.learn(1)
    for old, new in zip(before, matrices(both)):
        assert float((old - new).abs().amax()) > 1e-3
    torch.testing.assert_close(both.outputs(x, 0), wanted, rtol=1e-7, atol=1e-7)
    assert both.parts[1]  # there was something to share
    assert all(bool(mix.any()) for part in both.parts[1] for mix in part.mixes)
    assert not torch.allclose(both.outputs(x, 1), wanted)
    assert torch.equal(both.outputs(x, 2), both.model(x))  # a task not begun
