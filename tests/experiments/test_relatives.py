"""OWM, GPM, SGP, TRGP and CODE-CL against their papers' formulas, written plainly."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.learners import learner, taught
from helpers import inverse_formula, normal, reference_and, reference_or

pytestmark = pytest.mark.usefixtures("double")


def test_owm_multiplies_gradients_by_recursive_least_squares() -> None:
    owm = learner("owm", 3, alpha_decay="0.1,1", steps=6, hidden="12")
    P = [torch.eye(layer.dim) for layer in owm.layers]
    for number in range(2):
        owm.start_task(number)
        for step in range(6):
            x, y = owm.scenario.tasks[number].train.take(torch.arange(10 * step, 10 * step + 10))
            owm.model.zero_grad()
            owm.loss(owm.forward(x), y, number).mean().backward()
            wanted = []
            for i, layer in enumerate(owm.layers):
                mean = layer.rows().mean(0)
                alpha = (0.1 ** (step / 6), 1.0)[i]
                P[i] = torch.linalg.inv(torch.linalg.inv(P[i]) + torch.outer(mean, mean) / alpha)
                wanted += [*layer.named(torch.cat(gradients(layer), 1) @ P[i]).values()]
            owm.gradients(number)
            for parameter, gradient in zip(owm.model.parameters(), wanted):
                torch.testing.assert_close(parameter.grad, gradient, rtol=1e-7, atol=1e-8)
        for ours, theirs in zip(owm.projectors.values(), P):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
    with pytest.raises(ValueError, match="alpha_decay has 3 numbers for 2 layers"):
        learner("owm", alpha_decay="0.1,1,0.5")


def gradients(layer: Any) -> list[Tensor]:
    return [p.grad.reshape(len(p), -1) for p in layer.parameters.values()]


def test_owm_stays_a_projection_when_rounded() -> None:
    """With a small α many rows make P tiny: no direction may turn negative or grow."""
    torch.set_default_dtype(torch.float32)
    owm = learner("owm", alpha_decay="1e-6", steps=1500, rate=0.01)
    owm.learn(0)
    for P in owm.projectors.values():
        values = torch.linalg.eigvalsh(P.double())
        assert -1e-4 < float(values.min()) < float(values.max()) < 1 + 1e-4


class Memory:
    """What GPM and SGP store of one layer, as their authors write it, columns for samples."""

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


@pytest.mark.parametrize("method", ["gpm", "sgp"])
def test_gpm_and_sgp_project_by_the_formulas(method: str) -> None:
    given: dict[str, Any] = {"threshold": 0.7, "input_threshold": 0.5, "increase": 0.05}
    given |= {"samples": 20} | ({"coefficient": 3.0} if method == "sgp" else {})
    gpm = learner(method, 4, tasks=3, hidden="9,7", **given)
    memories = [Memory(layer.dim) for layer in gpm.layers]
    for k in range(3):
        gpm.learn(k)
        for i, (rows, memory) in enumerate(zip(gpm.drawn_rows(k).values(), memories)):
            memory.add(rows.numpy().T, (0.7 if i else 0.5) + 0.05 * k, 3.0)
        for i, (layer, memory) in enumerate(zip(gpm.layers, memories)):
            scale = memory.importance if method == "sgp" else 1.0
            gradient = normal(i, layer.weight.shape[0], layer.dim)
            claimed = torch.tensor(memory.basis * scale @ memory.basis.T)
            torch.testing.assert_close(
                gpm.projected(gradient, layer), gradient - gradient @ claimed
            )
    assert 0 < memories[0].basis.shape[1] < 7  # some directions are free


@pytest.mark.parametrize("trust", [0.5, 0.2])
def test_trgp_lets_a_task_remix_the_directions_of_tasks_it_trusts(trust: float) -> None:
    trgp = learner("trgp", 3, tasks=4, hidden="9", threshold=0.7, samples=20, trust=trust)
    directions: list[list[Tensor]] = [[], []]  # M_j of every layer
    for k in range(4):
        x, y = trgp.drawn_samples(k)
        trgp.model.zero_grad()
        trgp.loss(trgp.model(x), y, k).sum().backward()
        expected = []
        for layer, spaces in zip(trgp.layers, directions):
            g = torch.cat(gradients(layer), 1)
            shares = [(float((g @ M).norm() / g.norm()), j) for j, M in enumerate(spaces)]
            best = sorted(shares, reverse=True)[:2]
            expected += [(layer, spaces[j]) for share, j in best if share >= trust]
        trgp.learn(k)
        assert [layer for layer, _, _ in trgp.remixes[k]] == [layer for layer, _ in expected]
        for (_, U, _), (_, M) in zip(trgp.remixes[k], expected):
            torch.testing.assert_close(U, M)
        for (layer, R), spaces in zip(trgp.drawn_rows(k).items(), directions):
            M = trgp.bases[layer]
            energies = (R @ M).square().sum(0)
            order, chosen = energies.argsort(descending=True).tolist(), list[int]()
            while energies[chosen].sum() < 0.7 * R.square().sum():
                chosen.append(order[len(chosen)])
            spaces.append(M[:, chosen])
    assert [len(remixes) > 0 for remixes in trgp.remixes] == [False, True, True, True]


def conceptor(X: Tensor, aperture: float, kept: float) -> Tensor:
    """As the authors' code: the aperture grows by φ(C, 1.1) until enough of the rows is kept."""
    one = torch.eye(X.shape[1])
    C = inverse_formula(X.T @ X / len(X), aperture)
    while (X @ C).norm(dim=1).sum() < kept * X.norm(dim=1).sum():
        C = C @ torch.linalg.inv(C + 1.1**-2 * (one - C))
    return C


def cut(C: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((C + C.T) / 2)
    result: Tensor = vectors * torch.where(values < 0.2, 0.0, values) @ vectors.T
    return result


@pytest.mark.parametrize("kept", [0.0, 0.9])
def test_codecl_claims_and_frees_directions_by_the_formulas(kept: float) -> None:
    given: dict[str, Any] = {"aperture": 2.0, "kept": kept, "overlap": 0.3, "free": 2}
    codecl = learner("codecl", 3, tasks=3, samples=20, hidden="9", **given)
    claimed = [torch.zeros(layer.dim, layer.dim) for layer in codecl.layers]
    for k in range(3):
        expected = []
        for i, (layer, X) in enumerate(codecl.drawn_rows(k).items() if k else ()):
            both = reference_and(claimed[i], cut(conceptor(X, 2.0, kept)))
            if both.trace() > 0.3 * claimed[i].trace():
                values, vectors = torch.linalg.eigh(both)
                expected.append((layer, vectors[:, -2:][:, values[-2:] > 1e-9]))
        codecl.learn(k)
        assert [layer for layer, _, _ in codecl.remixes[k]] == [layer for layer, _ in expected]
        for (_, U, _), (_, V) in zip(codecl.remixes[k], expected):
            torch.testing.assert_close(U @ U.T, V @ V.T, rtol=1e-6, atol=1e-7)
        for i, (layer, X) in enumerate(codecl.drawn_rows(k).items()):
            claimed[i] = cut(reference_or(claimed[i], conceptor(X, 2.0, kept)))
            torch.testing.assert_close(
                codecl.claimed[layer].matrix(), claimed[i], rtol=1e-6, atol=1e-7
            )
            gradient = normal(i, layer.weight.shape[0], layer.dim)
            wanted = gradient - gradient @ claimed[i]
            torch.testing.assert_close(
                codecl.projected(gradient, layer), wanted, rtol=1e-6, atol=1e-6
            )
    assert 0 < sum(len(remixes) for remixes in codecl.remixes) < 4


FULL: dict[str, dict[str, Any]] = {  # claims all directions of a task's samples, to rounding
    "gpm": {"threshold": 1.0},
    "trgp": {"threshold": 1.0},
    "codecl": {"aperture": 1e6, "kept": 0.0, "free": 3, "overlap": 0.2},
}


@pytest.mark.parametrize("method", list(FULL))
def test_earlier_tasks_keep_their_outputs(method: str) -> None:
    few: dict[str, Any] = {"inputs": 16, "n": 10, "hidden": "20", "rate": 0.1, "steps": 20}
    both = learner(method, **few, samples=0, **FULL[method])
    x, _ = both.drawn_samples(0)
    both.learn(0)
    before = [layer.matrix().detach() for layer in both.layers]
    outputs = both.outputs(x, 0)
    both.learn(1)
    torch.testing.assert_close(both.outputs(x, 0), outputs, rtol=1e-7, atol=1e-7)
    for old, layer in zip(before, both.layers):
        assert not torch.allclose(layer.matrix(), old, atol=1e-3)  # it did learn
    if method != "gpm":
        assert not torch.allclose(both.outputs(x, 1), outputs)
        assert torch.equal(both.outputs(x, 2), both.model(x))  # a task not begun


@pytest.mark.parametrize("method", ["trgp", "codecl"])
def test_a_task_uses_the_shared_weights_remixed_within_subspaces(method: str) -> None:
    given: Any = {"trgp": {"threshold": 0.7, "trust": 0.1}, "codecl": {"free": 2, "overlap": 0.1}}
    both = taught(learner(method, 3, tasks=3, hidden="9", samples=20, **given[method]))
    W = {layer: layer.matrix() for layer in both.layers}
    wanted = dict(W)
    for layer, U, D in both.remixes[2]:
        assert bool(D.any())
        wanted[layer] = wanted[layer] + W[layer] @ U @ D @ U.T
    x, _ = both.drawn_samples(2)
    ones, (first, second) = torch.ones(len(x), 1), wanted.values()
    hidden = torch.relu(torch.cat([x, ones], 1) @ first.T)
    torch.testing.assert_close(both.outputs(x, 2), torch.cat([hidden, ones], 1) @ second.T)
