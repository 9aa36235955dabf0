"""project="inputs": the same steps as by gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from conceptors import Conceptor, Shield
from conceptors._internal.precision import rounded
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.inputs import FreeRows
from shield.common import block
from shield.step.common import gradients
from shield.step.projected import Run, data, network

# --- the same steps --------------------------------------------------------------------------


def plain(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    run.loss(data(step + 2)).backward()
    run.optimizer.step()


def zero_late(run: Run, step: int) -> None:
    loss = run.loss(data(step + 2))
    run.optimizer.zero_grad(set_to_none=step % 2 == 0)
    loss.backward()
    run.optimizer.step()


def accumulated(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    for part in data(step + 2).split(7):
        run.loss(part).backward()
    run.optimizer.step()


def scaled(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    (1024 * run.loss(data(step + 2))).backward()
    for parameter in run.model.parameters():
        parameter.grad /= 1024
    run.optimizer.step()


def skipped(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    run.loss(data(step + 9)).backward()
    plain(run, step)


def twice(run: Run, step: int) -> None:
    plain(run, step)
    run.optimizer.step()


def closure(run: Run, step: int) -> None:
    def compute() -> Tensor:
        run.optimizer.zero_grad()
        loss = run.loss(data(step + 2))
        loss.backward()
        return loss

    run.optimizer.step(compute)  # type: ignore[arg-type]


def called_twice(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    (run.loss(data(step + 2)) + 2 * run.loss(data(step + 3))).backward()
    run.optimizer.step()


def varying(run: Run, step: int) -> None:
    """Some batches have more rows than a layer has outputs."""
    run.optimizer.zero_grad()
    run.loss(data(step + 2, count=100 if step % 3 else 20)).backward()
    run.optimizer.step()


def refreshed(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    run.loss(data(step + 2)).backward()
    run.shield.refresh()
    run.optimizer.step()


def unused(run: Run, step: int) -> None:
    """Some steps leave the first layer out."""
    run.optimizer.zero_grad()
    hidden = run.model[:2](data(step + 2))
    run.model[2:](hidden.detach() if step % 2 else hidden).square().mean().backward()
    run.optimizer.step()


WAYS = [
    plain,
    zero_late,
    accumulated,
    scaled,
    skipped,
    twice,
    closure,
    called_twice,
    varying,
    refreshed,
    unused,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__name__))
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_it_is_the_same_step(way: Callable[[Run, int], None], momentum: float, hard: bool) -> None:
    ours, theirs = (Run(kind, hard, momentum=momentum) for kind in ("inputs", "gradients"))
    for step in range(6):
        way(ours, step)
        way(theirs, step)
    assert ours.done() == {"inputs projected"}
    assert "inputs projected" not in theirs.done()
    for mine, other in zip(ours.model.parameters(), theirs.model.parameters()):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rank", [None, 2], ids=["most directions", "few"])
@pytest.mark.parametrize("shape", [(20, 10), (4, 5, 10)], ids=["rows", "sequences"])
def test_gradients_are_projected_by_backward(rank: int | None, shape: tuple[int, ...]) -> None:
    model, bare = network(), network()
    shield = Shield(model, 3.0, project="inputs", rank=rank, warn_at_quota=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shield.guard(optimizer).zero_grad()
    shield.remember(data(1))
    for one in (model, bare):
        (one(data(2).view(shape)) - 1).square().mean().backward()
    for name, claimed in shield.conceptors().items():
        kept = claimed if rank is None else claimed.top_k(rank)
        free = torch.eye(claimed.dim).double() - kept.matrix()
        wanted = gradients(bare)[name] @ free
        torch.testing.assert_close(gradients(model)[name], wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_layers_that_are_no_plain_linear_ones_are_done_by_gradients(momentum: float) -> None:
    """Or by steps, as without the option."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(10, 8), nn.LayerNorm(8), nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2)
    )
    model = model.double()
    shield = Shield(model, 1e4, hard=True, project="inputs", warn_at_quota=1.0)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum))
    shield.remember(data(1, count=3))
    before = model(data(1, count=3)).detach()
    for seed in range(5):
        optimizer.zero_grad()
        (model(data(seed + 2)) - 1).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(model(data(1, count=3)), before, rtol=0, atol=1e-10)
    done = {row.layer: row.done for row in shield.explain()}
    assert done["0"] == "inputs projected"
    otherwise = "steps projected" if momentum else "gradients projected"
    assert (done["1"], done["3"]) == (otherwise, otherwise)


def test_a_layer_in_groups_of_its_own_rates_is_done_by_steps() -> None:
    """G F with one rate for the weight and another for the bias is no step in the free space."""
    model = network()
    shield = Shield(model, 1e4, hard=True, project="inputs", warn_at_quota=1.0)
    weights, biases = [model[0].weight, model[2].weight], [model[0].bias]
    groups = [{"params": weights, "lr": 0.1}, {"params": biases, "lr": 0.01}]
    optimizer = shield.guard(torch.optim.SGD(groups))
    shield.remember(data(1, count=3))
    before = model(data(1, count=3)).detach()
    for seed in range(5):
        optimizer.zero_grad()
        (model(data(seed + 2)) - 1).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(model(data(1, count=3)), before, rtol=0, atol=1e-10)
    done = {row.layer: row.done for row in shield.explain()}
    assert done == {"0": "gradients and steps projected", "2": "inputs projected"}


# --- momentum --------------------------------------------------------------------------------


def test_momentum_of_an_old_task_does_not_push_into_its_space() -> None:
    run = Run(momentum=0.9)
    for step in range(5):
        plain(run, step)
    run.shield.remember(data(77))
    claims, start = run.shield.conceptors()["0"][0].matrix(), block(run.model[0])
    for step in range(5):
        plain(run, step)
    moved = block(run.model[0]) - start
    assert float(moved.norm()) > 1e-4
    torch.testing.assert_close(moved @ claims, torch.zeros_like(start), rtol=0, atol=1e-12)


def test_momentum_from_before_the_guard_does_not_either() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        (model(data(step)) - 1).square().mean().backward()
        optimizer.step()
    shield = Shield(model, 3.0, hard=True, project="inputs", warn_at_quota=1.0).remember(data(1))
    shield.guard(optimizer)
    claims, start = shield.conceptors()["0"][0].matrix(), block(model[0])
    optimizer.zero_grad()
    (model(data(3)) - 1).square().mean().backward()
    optimizer.step()
    moved = block(model[0]) - start
    torch.testing.assert_close(moved @ claims, torch.zeros_like(start), rtol=0, atol=1e-12)


def test_a_resumed_run_goes_on_bit_by_bit() -> None:
    one = Run(hard=False, momentum=0.9)
    for step in range(3):
        plain(one, step)
    weights = copy.deepcopy(one.model.state_dict())
    moments = copy.deepcopy(one.optimizer.state_dict())
    state = copy.deepcopy(one.shield.state_dict())
    for step in range(3, 6):
        plain(one, step)
    two = Run(hard=False, momentum=0.9)
    two.model.load_state_dict(weights)
    two.optimizer.load_state_dict(moments)
    two.shield.load_state_dict(state)
    for step in range(3, 6):
        plain(two, step)
    for mine, other in zip(one.model.parameters(), two.model.parameters()):
        assert torch.equal(mine, other)


# --- on tensor cores -------------------------------------------------------------------------


@pytest.mark.parametrize("width", [12, 11])  # without and with a bias
@pytest.mark.parametrize("groups", [1, 3])
def test_rows_times_a_space_in_two_parts_are_the_same(groups: int, width: int) -> None:
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(groups, 40, 12, generator=draw)
    claimed = Conceptor.from_states(states, 2.0)
    free = FreeSpace(claimed, torch.float32)
    x, g = (torch.randn(groups, 7, n, generator=draw) for n in (width, 5))
    if groups == 1:
        x, g = x[0], g[0]
    plain, parted = (FreeRows(free, width, groups > 1, split=some) for some in (False, True))
    if width < 12:  # numbers that TF32 holds: others are rounded
        x, g = rounded(x), rounded(g)
    (weight, bias), (other_weight, other_bias) = plain.gradients(g, x), parted.gradients(g, x)
    torch.testing.assert_close(other_weight, weight, rtol=1e-5, atol=1e-5)
    if width == 12:
        assert bias is None
        assert other_bias is None
    else:
        torch.testing.assert_close(other_bias, bias, rtol=1e-5, atol=1e-5)


def test_weight_and_bias_are_made_of_the_same_rounded_numbers() -> None:
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(2, 400, 7, generator=draw) @ torch.randn(2, 7, 12, generator=draw)
    claimed = Conceptor.from_states(states.double(), 1e3).harden()  # 7 of 12 directions
    free = FreeSpace(claimed, torch.float32)
    x, g = (torch.randn(2, 64, n, generator=draw) for n in (11, 5))
    weight, bias = FreeRows(free, 11, grouped=True, split=True).gradients(g, x)
    assert bias is not None
    found = torch.cat([weight, bias.unsqueeze(-1)], -1).double()
    assert float((found @ claimed.matrix()).norm() / found.norm()) < 1e-5
