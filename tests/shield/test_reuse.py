"""Similar tasks: longer steps, and what is shared claimed once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Conceptor, Shield
from conceptors.algebra.novelty import join_novel, stride


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def rows(model: nn.Sequential, x: Tensor) -> list[Tensor]:
    """What enters both layers, with the constant of the bias."""
    inputs = [x, model[1](model[0](x)).detach()]
    return [torch.cat([h, torch.ones(len(h), 1).double()], 1) for h in inputs]


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    old = torch.randn(40, 6).double() * torch.tensor([3.0, 2.0, 1.0, 0.5, 0.2, 0.1]).double()
    return old, old + 0.1 * torch.randn(40, 6).double()


def test_strides_and_claims_are_their_formulas(data: tuple[Tensor, Tensor]) -> None:
    old, new = data
    model = network()
    shield = Shield(model, aperture=3.0)
    shield.remember(old)
    first = [Conceptor.from_states(x, 3.0) for x in rows(model, old)]
    second = [Conceptor.from_states(x, 3.0) for x in rows(model, new)]
    strides = shield.strides(new, known=0.8)
    for name, A, C in zip(("0", "2"), first, second):
        torch.testing.assert_close(strides[name], stride(A, C, 0.8)[None])
        assert float(strides[name]) > 1
    shield.remember(new, known=0.8)
    for A, C, held in zip(first, second, shield.conceptors().values()):
        torch.testing.assert_close(held.matrix()[0], join_novel(A, C, 0.8).matrix())


def test_known_tasks_claim_less(data: tuple[Tensor, Tensor]) -> None:
    quotas = []
    for known in (0.0, 0.5, 1.0):
        torch.manual_seed(1)
        shield = Shield(network(), aperture=3.0)
        for x in data:
            shield.remember(x, known=known)
        quotas.append(sum(shield.quota().values()))
    assert quotas == sorted(quotas, reverse=True)
    assert quotas[0] > quotas[2]


def test_strides_are_one_where_nothing_is_known(data: tuple[Tensor, Tensor]) -> None:
    old, new = data
    shield = Shield(network(), aperture=3.0).remember(old)
    assert [float(s) for s in shield.strides(new, known=0.0).values()] == [1.0, 1.0]
    assert Shield(network()).strides(new, known=1.0) == {}  # nothing is remembered yet


def test_strides_of_hard_shields_see_the_data_as_it_is(data: tuple[Tensor, Tensor]) -> None:
    old, new = data
    model = network()
    shield = Shield(model, aperture=1.0, hard=True).remember(old)
    for name, C in zip(("0", "2"), (Conceptor.from_states(x, 1.0) for x in rows(model, new))):
        held = shield.conceptors()[name].mapped(lambda tensor, _: tensor[0])
        torch.testing.assert_close(shield.strides(new, known=1.0)[name], stride(held, C, 1.0)[None])


def test_forget_joins_the_rest_in_full(data: tuple[Tensor, Tensor]) -> None:
    old, new = data
    shield = Shield(network(), aperture=3.0, keep_tasks=True)
    for x in (torch.randn(20, 6).double(), old, new):
        shield.remember(x, known=1.0)
    _, second, third = shield.tasks()
    shield.forget(0)
    for name, held in shield.conceptors().items():
        torch.testing.assert_close(held.matrix(), (second[name] | third[name]).matrix())


@pytest.mark.parametrize("known", [-0.1, 1.1, float("nan"), torch.tensor([0.5, 2.0])])
def test_an_impossible_share_is_refused(known: Any, data: tuple[Tensor, Tensor]) -> None:
    shield = Shield(network(), aperture=3.0).remember(data[0])
    before = shield.quota()
    with pytest.raises(ValueError, match="known"):
        shield.strides(data[1], known=known)
    with pytest.raises(ValueError, match="known"):
        shield.remember(data[1], known=known)
    assert shield.quota() == before
    assert shield.n_tasks == 1


def test_a_similar_task_takes_fewer_steps() -> None:
    """Least squares: the new task wants weights that differ a little from those of the old."""
    old, truth = torch.randn(60, 4).double(), torch.randn(4, 1).double()
    new = old + 0.05 * torch.randn(60, 4).double()
    target = new @ (truth + 0.1)

    def steps(known: float) -> int:
        model = nn.Linear(4, 1, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(truth.mT)
        shield = Shield(model, aperture=3.0).remember(old)
        (factor,) = (float(found) for found in shield.strides(new, known).values())
        optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1 * factor))
        for step in range(2000):
            loss = (model(new) - target).square().mean()
            if float(loss.detach()) < 1e-3:
                return step
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return 2000

    assert steps(1.0) < steps(0.0) / 2
