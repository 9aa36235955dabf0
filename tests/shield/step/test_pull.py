"""aperture="auto": a share of the energy is claimed, and what moves is drawn back.

While a task is learned, the objective is L + pull/2 · E|ΔW x|² / E|W x|² over the remembered rows
x, preconditioned by F as everything else.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning
from conceptors.algebra.targets import Auto
from helpers import normal
from shield.step.common import backward, blocks, gradients, mixed, odds, root, set_gradients, train
from shield.step.pulled import anchor, block, given_out, pulled, rows, second_moment, stiffness_of

# weights are moved by hand here, to be pulled back
pytestmark = pytest.mark.filterwarnings("ignore:weights have moved:conceptors.UnprotectedWarning")


@pytest.mark.parametrize("shape", [(30, 8), (6, 5, 8)], ids=["rows", "sequences"])
def test_one_sgd_step_is_the_closed_form(shape: tuple[int, ...]) -> None:
    """W - η (G + pull ΔW R / E|W x|²) F, with R = E x xᵀ, whatever the samples."""
    x = rows().view(shape)
    layer, shield = pulled(x, Auto(share=0.8, pull=3.0))
    claimed = shield.conceptors()["Linear"][0]
    assert int((claimed.singular_values > 0.02).sum()) == 4  # and the others are zero
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.1))
    start = block(layer)
    (layer(normal(4, 12, 8)) - 1).square().sum().backward()
    moment = second_moment(x)
    force = 3.0 * (start - anchor()) @ moment / given_out(anchor(), moment)
    optimizer.step()
    G = next(iter(gradients(layer).values()))[0]
    free = torch.eye(9).double() - claimed.matrix()
    torch.testing.assert_close(block(layer), start - 0.1 * (G + force) @ free, rtol=0, atol=1e-12)


def test_the_aperture_claims_a_share_of_the_energy_at_any_scale() -> None:
    for size in (1e-3, 1.0, 1e3):
        layer = nn.Linear(8, 5, bias=False).double()
        shield = Shield(layer, Auto(share=0.7), rows=None).remember(size * rows())
        moment = second_moment(size * rows())[:8, :8]
        claimed = shield.conceptors()["Linear"][0].matrix()
        assert float((claimed @ moment).trace() / moment.trace()) == pytest.approx(0.7, abs=1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_the_pull_of_every_kind_of_block(optimizer: str) -> None:
    """G F^½ is given the gradient of c/2 tr ΔW Q ΔWᵀ, times F^½, and V F^½ is the step."""
    made: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    }
    model, twin = mixed(), mixed()
    shield = Shield(model, Auto(room=0.0), warn_at_quota=1.0).remember(torch.arange(5))
    before = blocks(model)
    train(model, shield.guard(made[optimizer](model.parameters())), 3)
    guarded = made[optimizer](model.parameters())
    shield.guard(guarded)
    twin.load_state_dict(model.state_dict())
    backward(twin)
    start, given, halves = blocks(twin), {}, {}
    for name, G in gradients(twin).items():
        claimed = shield.conceptors()[name]
        Q = odds(claimed, least=0.02)
        A = Q @ torch.linalg.inv(Q + torch.eye(claimed.dim))
        halves[name] = root((A + A.mT) / 2)
        force = stiffness_of(shield)[name][:, None, None] * (start[name] - before[name]) @ Q
        given[name] = (G + force) @ halves[name]
        assert float(force.norm()) > 1e-6
    set_gradients(twin, given)
    made[optimizer](twin.parameters()).step()
    backward_into(model, guarded)
    for name, raw in blocks(twin).items():
        wanted = start[name] + (raw - start[name]) @ halves[name]
        torch.testing.assert_close(blocks(model)[name], wanted, rtol=0, atol=1e-12)


def backward_into(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


def test_a_token_is_pulled_as_often_as_it_was_met() -> None:
    """And is claimed by the share alone, however seldom that was."""
    torch.manual_seed(0)
    words = nn.Embedding(6, 3).double()
    shield = Shield(words, Auto(share=0.75, pull=0.5)).remember(
        torch.tensor([[0, 1, 1], [1, 0, 1]])
    )
    assert shield.spectra()["Embedding"].flatten().tolist() == pytest.approx(
        [0.75, 0.75, 0, 0, 0, 0], abs=1e-9
    )
    before = words.weight.detach().clone()
    with torch.no_grad():
        words.weight += 0.1
    start = words.weight.detach().clone()
    optimizer = shield.guard(torch.optim.SGD(words.parameters(), lr=0.1))
    words(torch.arange(6)).square().sum().backward()
    optimizer.step()
    times = torch.tensor([1.0, 2.0, 0, 0, 0, 0]).double()[:, None] / 3  # of all tokens
    energy = (times * before.square()).sum()
    free = torch.tensor([0.25, 0.25, 1, 1, 1, 1]).double()[:, None]
    wanted = start - 0.1 * (2 * start + 0.5 * times / energy * (start - before)) * free
    torch.testing.assert_close(words.weight.detach(), wanted, rtol=0, atol=1e-9)


def test_the_pull_of_several_tasks_adds_up() -> None:
    """tr c Q is the sum over the tasks of pull · E|x|² / E|W x|², W as it was after each."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 5).double()
    shield = Shield(layer, Auto(pull=0.3), rows=None, warn_at_quota=1.0)
    first, second = rows(), 2 * normal(5, 40, 8)
    shield.remember(first)
    weights = [block(layer)]
    with torch.no_grad():
        layer.weight *= 2
    with pytest.warns(UnprotectedWarning, match=r"Linear \(by 10\d%\)"):
        shield.remember(second)
    weights.append(block(layer))
    claimed = shield.conceptors()["Linear"]
    found = stiffness_of(shield)["Linear"] * claimed.odds_trace()
    moments = [second_moment(first), second_moment(second)]
    wanted = sum(0.3 * m.trace() / given_out(w, m) for m, w in zip(moments, weights))
    assert isinstance(wanted, Tensor)
    torch.testing.assert_close(found, wanted[None], rtol=1e-9, atol=0)


def test_a_layer_that_gives_out_nothing_is_pulled_all_the_same() -> None:
    """An adapter that begins with zeros: E|W x|² counts as 1e-4 E|x|² out / 3 d at least."""
    layer = nn.Linear(8, 5, bias=False).double()
    nn.init.zeros_(layer.weight)
    shield = Shield(layer, Auto(pull=0.3), rows=None, warn_at_quota=1.0).remember(rows())
    found = stiffness_of(shield)["Linear"] * shield.conceptors()["Linear"].odds_trace()
    assert float(found) == pytest.approx(0.3 * 1e4 * 3 * 8 / 5, rel=1e-9)


@pytest.mark.parametrize("by_state", [False, True], ids=["kept", "loaded"])
def test_the_pull_of_a_forgotten_task_ends(by_state: bool) -> None:
    """What is left is that of a shield which never met the task; of no tasks, none at all."""
    many, few = mixed(), mixed()
    shield = Shield(many, warn_at_quota=1.0, keep_tasks=True)
    other = Shield(few, warn_at_quota=1.0)
    tasks = [torch.arange(5), torch.arange(3, 9), torch.tensor([1, 7, 10])]
    for number, task in enumerate(tasks):
        shield.remember(task)
        if number != 1:
            other.remember(task)
    if by_state:
        state = shield.state_dict()
        shield.detach()
        shield = Shield(many, warn_at_quota=1.0, keep_tasks=True)
        shield.load_state_dict(state)
    before = {name: c.clone() for name, c in stiffness_of(shield).items()}
    shield.forget(1)
    assert stiffness_of(shield).keys() == stiffness_of(other).keys() == before.keys()
    for name, stiffness in stiffness_of(other).items():
        torch.testing.assert_close(stiffness_of(shield)[name], stiffness, rtol=1e-9, atol=0)
    assert any(not torch.equal(before[name], c) for name, c in stiffness_of(other).items())
    shield.forget(1).forget(0)
    assert stiffness_of(shield) == {}
    optimizer = shield.guard(torch.optim.SGD(many.parameters(), lr=0.1))
    with torch.no_grad():
        for parameter in many.parameters():
            parameter.add_(0.1)
    start = [p.detach().clone() for p in many.parameters()]
    for parameter in many.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(map(torch.equal, many.parameters(), start))


@pytest.mark.parametrize(
    "options", [{"aperture": 3.0}, {"hard": True}, {"aperture": Auto(pull=0.0)}]
)
def test_nothing_is_pulled_otherwise(options: dict[str, Any]) -> None:
    """Numbers are Algorithm 2, hard conceptors let nothing move, and a pull can be left out."""
    layer, shield = pulled(rows(), **options)
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.1))
    start = block(layer)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(block(layer), start, rtol=0, atol=0)


def test_weak_directions_are_free_with_an_automatic_aperture_alone() -> None:
    """Singular values up to 0.02 take steps off, or not."""
    x = rows() + 1e-3 * normal(6, 30, 8)
    for aperture in ("auto", None):
        layer = nn.Linear(8, 5, bias=False).double()
        # at this aperture the conceptor is the automatic one
        number = Shield(nn.Linear(8, 5, bias=False).double(), rows=None).remember(x)
        found = number.conceptors()["Linear"].aperture
        assert isinstance(found, Tensor)
        shield = Shield(layer, aperture or float(found), rows=None, warn_at_quota=1.0).remember(x)
        values = shield.spectra()["Linear"]
        strong = int((values > 0.02).sum())
        assert strong == 3
        assert bool((values > 0).all())
        (row,) = shield.explain()
        assert row.rank == (strong if aperture else 8)


def test_the_weights_come_back_to_where_the_loss_lets_them() -> None:
    """Without a loss the pull alone acts: what moved along claimed directions goes to zero."""
    layer, shield = pulled(rows())
    optimizer = shield.guard(torch.optim.AdamW(layer.parameters(), lr=0.01, weight_decay=0.0))
    before = anchor()
    moved = float((rows() @ (block(layer) - before)[:, :8].mT).norm())
    for _ in range(300):
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    wide = torch.cat([rows(), torch.ones(30, 1).double()], 1)
    assert float((wide @ (block(layer) - before).mT).norm()) < 0.05 * moved


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_scales_the_pull_too(fused: bool) -> None:
    """A fused optimizer is given scaled gradients, and unscales them by itself."""
    finals = []
    for scale in (1.0, 1024.0):
        layer, shield = pulled(rows())
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        made = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.5, fused=fused)
        optimizer = shield.guard(made)
        for seed in range(3):
            optimizer.zero_grad()
            scaler.scale((layer(normal(seed, 6, 8)) - 1).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        finals.append(block(layer))
    torch.testing.assert_close(finals[0], finals[1], rtol=0, atol=1e-12)


def test_lbfgs_is_given_the_pull_of_the_weights_it_looks_at() -> None:
    """Its closure is called several times within one step."""
    layer, shield = pulled(rows())
    seen: list[tuple[Tensor, Tensor]] = []
    optimizer = torch.optim.LBFGS(layer.parameters(), lr=0.5, max_iter=3)
    shield.guard(
        optimizer,
        between=lambda: seen.append((block(layer), next(iter(gradients(layer).values()))[0])),
    )

    def closure() -> float:
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return 0.0

    optimizer.step(closure)
    claimed = shield.conceptors()["Linear"][0].matrix()
    stiffness = stiffness_of(shield)["Linear"]
    assert len(seen) > 1
    for weights, given in seen:
        wanted = stiffness * (weights - anchor()) @ claimed
        torch.testing.assert_close(given, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_moved_to_another_dtype_is_pulled(dtype: torch.dtype) -> None:
    """W_before stays what it was, and goes along."""
    layer, shield = pulled(rows())
    layer.to(dtype)
    stiffness = stiffness_of(shield)["Linear"]
    rate = float(0.4 / stiffness)  # as large as is steady, to be seen in half precision
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=rate))
    start = block(layer).double()
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    claimed = shield.conceptors()["Linear"][0].matrix()
    wanted = -rate * stiffness * (start - anchor()) @ claimed
    size = float(wanted.abs().max()) * (0.05 if dtype == torch.bfloat16 else 1e-4)
    torch.testing.assert_close(block(layer).double() - start, wanted, rtol=0, atol=size)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_resumed_run_is_pulled_to_the_same_place(momentum: float) -> None:
    def steps(layer: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
        for seed in seeds:
            optimizer.zero_grad()
            (layer(normal(seed, 6, 8)) - 1).square().mean().backward()
            optimizer.step()

    def start() -> tuple[nn.Linear, Shield, torch.optim.Optimizer]:
        layer = nn.Linear(8, 5).double()
        shield = Shield(layer, rows=None, warn_at_quota=1.0)
        made = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=momentum)
        return layer, shield, shield.guard(made)

    layer, shield, optimizer = start()
    shield.remember(rows())
    steps(layer, optimizer, range(3))
    states: list[Any] = [layer.state_dict(), optimizer.state_dict(), shield.state_dict()]
    states = copy.deepcopy(states)
    steps(layer, optimizer, range(3, 6))
    other, other_shield, other_optimizer = start()
    other.load_state_dict(states[0])
    other_optimizer.load_state_dict(states[1])
    other_shield.load_state_dict(states[2])
    steps(other, other_optimizer, range(3, 6))
    assert torch.equal(block(other), block(layer))
