"""Projecting what enters a layer is the same as projecting its gradient, and is verified."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, inputs


@pytest.fixture(autouse=True)
def _small_layers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "WORTH", 1)


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(10, 64), nn.ReLU(inplace=True), nn.Linear(64, 40, bias=False), nn.Tanh()
    ).double()


def data(seed: int, count: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return left @ torch.randn(4, 10, generator=generator, dtype=torch.float64)


class Run:
    """A shielded network in training, by its inputs or by its updates."""

    def __init__(self, by_inputs: bool, hard: bool, **options: float) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inputs, "WORTH", 1 if by_inputs else 2**62)
            self.model = network()
            self.shield = Shield(self.model, 3.0, hard=hard, warn_at_quota=1.0)
            made = torch.optim.SGD(self.model.parameters(), lr=0.05, **options)  # type: ignore[arg-type]
            self.optimizer = self.shield.guard(made)
            self.shield.remember(data(1))

    def loss(self, x: Tensor) -> Tensor:
        found: Tensor = (self.model(x) - 1).square().mean()
        return found

    @property
    def trusted(self) -> int:
        return len(self.shield._guards[0]._trusted)


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


WAYS = [plain, zero_late, accumulated, scaled, skipped, twice, closure, called_twice]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__name__))
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_it_is_the_same_step(way: Callable[[Run, int], None], momentum: float, hard: bool) -> None:
    ours, theirs = Run(True, hard, momentum=momentum), Run(False, hard, momentum=momentum)
    for step in range(6):
        way(ours, step)
        way(theirs, step)
    assert ours.trusted == 2
    assert theirs.trusted == 0
    for mine, other in zip(ours.model.parameters(), theirs.model.parameters()):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-13)


def penalty(run: Run) -> None:
    (run.loss(data(2)) + 0.1 * run.model[0].weight.square().sum()).backward()


def by_hand(run: Run) -> None:
    run.loss(data(2)).backward()
    run.model[0].weight.grad += 0.01 * run.model[0].weight.detach()


def replaced(run: Run) -> None:
    run.loss(data(2)).backward()
    run.model[0].bias.grad = torch.ones_like(run.model[0].bias)


def many_rows(run: Run) -> None:
    run.loss(data(2)).backward()
    run.loss(data(3, 100)).backward()


@pytest.mark.parametrize("spoil", [penalty, by_hand, replaced, many_rows])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_of_other_origin_are_noticed(
    spoil: Callable[[Run], None], momentum: float
) -> None:
    run = Run(True, hard=True, momentum=momentum)
    claims = run.shield.conceptors()["0"][0].matrix()
    start = torch.cat([run.model[0].weight, run.model[0].bias[:, None]], 1).detach()
    for step in range(8):
        run.optimizer.zero_grad()
        spoil(run) if step % 2 else run.loss(data(2)).backward()
        run.optimizer.step()
    end = torch.cat([run.model[0].weight, run.model[0].bias[:, None]], 1).detach()
    assert (end - start).norm() > 1e-3
    torch.testing.assert_close((end - start) @ claims, torch.zeros_like(start), rtol=0, atol=1e-12)


def test_old_momentum_does_not_come_through() -> None:
    """A batch of many rows leaves raw momentum; the next small batch must not let it in."""
    run = Run(True, hard=True, momentum=0.9)
    claims = run.shield.conceptors()["0"][0].matrix()
    start = torch.cat([run.model[0].weight, run.model[0].bias[:, None]], 1).detach()
    for count in (100, 20, 100, 20):
        run.optimizer.zero_grad()
        run.loss(data(5, count)).backward()
        run.optimizer.step()
    end = torch.cat([run.model[0].weight, run.model[0].bias[:, None]], 1).detach()
    torch.testing.assert_close((end - start) @ claims, torch.zeros_like(start), rtol=0, atol=1e-12)


def test_outputs_and_input_gradients_are_untouched() -> None:
    run, bare = Run(True, hard=False), network()
    x, y = data(4).requires_grad_(), data(4).requires_grad_()
    torch.testing.assert_close(run.model(x), bare(y), rtol=0, atol=0)
    run.loss(x).backward()
    (bare(y) - 1).square().mean().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-15)


def test_copies_and_pickles_of_the_model_are_not_shielded() -> None:
    run, bare = Run(True, hard=True), network()
    file = io.BytesIO()
    torch.save(run.model, file)
    file.seek(0)
    for other in (copy.deepcopy(run.model), torch.load(file, weights_only=False)):
        bare.zero_grad()
        (other(data(3)) - 1).square().mean().backward()
        (bare(data(3)) - 1).square().mean().backward()
        torch.testing.assert_close(other[0].weight.grad, bare[0].weight.grad, rtol=0, atol=1e-15)


def test_torch_func_sees_the_plain_model() -> None:
    run = Run(True, hard=True)
    parameters = dict(run.model.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = (
            (torch.func.functional_call(run.model, parameters, (x,)) - 1).square().mean()
        )
        return found

    found = torch.func.grad(loss)(parameters, data(3))
    bare = network()
    (bare(data(3)) - 1).square().mean().backward()
    torch.testing.assert_close(found["0.weight"], bare[0].weight.grad, rtol=0, atol=1e-15)


def test_detach_takes_the_hooks_off() -> None:
    run = Run(True, hard=True)
    assert run.model[0]._forward_hooks
    run.shield.detach()
    assert not run.model[0]._forward_hooks


def test_a_resumed_run_goes_on_bit_by_bit() -> None:
    one = Run(True, hard=False, momentum=0.9)
    for step in range(3):
        plain(one, step)
    weights = copy.deepcopy(one.model.state_dict())
    moments = copy.deepcopy(one.optimizer.state_dict())
    state = copy.deepcopy(one.shield.state_dict())
    for step in range(3, 6):
        plain(one, step)
    two = Run(True, hard=False, momentum=0.9)
    two.model.load_state_dict(weights)
    two.optimizer.load_state_dict(moments)
    two.shield.load_state_dict(state)
    for step in range(3, 6):
        plain(two, step)
    for mine, other in zip(one.model.parameters(), two.model.parameters()):
        assert torch.equal(mine, other)


def varying(run: Run, step: int) -> None:
    """Some batches have more rows than a layer has outputs."""
    run.optimizer.zero_grad()
    run.loss(data(step + 2, 100 if step % 3 else 20)).backward()
    run.optimizer.step()


def zeroed_without_a_step(run: Run, step: int) -> None:
    for seed in (step + 9, step + 2):
        run.optimizer.zero_grad(set_to_none=False)
        run.loss(data(seed)).backward()
    run.optimizer.step()


def refreshed(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    run.loss(data(step + 2)).backward()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "WORTH", 1 if run.shield._world.inlets else 2**62)
        run.shield.refresh()
    run.optimizer.step()


def unused(run: Run, step: int) -> None:
    """Some steps leave the first layer out."""
    run.optimizer.zero_grad()
    hidden = run.model[:2](data(step + 2))
    run.model[2:](hidden.detach() if step % 2 else hidden).square().mean().backward()
    run.optimizer.step()


@pytest.mark.parametrize("way", [varying, zeroed_without_a_step, refreshed, unused])
def test_soft_conceptors_are_applied_once_to_momentum_too(way: Callable[[Run, int], None]) -> None:
    ours, theirs = (Run(by_inputs, hard=False, momentum=0.9) for by_inputs in (True, False))
    for step in range(6):
        way(ours, step)
        way(theirs, step)
    for mine, other in zip(ours.model.parameters(), theirs.model.parameters()):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-13)


def momentum_from_elsewhere(run: Run) -> None:
    plain(run, 0)
    state = copy.deepcopy(run.optimizer.state_dict())
    for held in state["state"].values():
        held["momentum_buffer"].fill_(1.0)
    run.optimizer.load_state_dict(state)
    plain(run, 1)


def momentum_of_weights_alone(run: Run) -> None:
    for step in range(2):
        run.optimizer.zero_grad()
        run.loss(data(step + 2, 100)).backward()
        run.model[0].bias.grad = None
        run.optimizer.step()
    plain(run, 2)


def cut_through_data(run: Run) -> None:
    for step in range(3):
        run.optimizer.zero_grad()
        run.loss(data(step + 2)).backward()
        for parameter in run.model.parameters():
            parameter.grad.data.clamp_(-1e-3, 1e-3)
        run.optimizer.step()


@pytest.mark.parametrize(
    "way", [momentum_from_elsewhere, momentum_of_weights_alone, cut_through_data]
)
def test_nothing_else_comes_through(way: Callable[[Run], None]) -> None:
    run = Run(True, hard=True, momentum=0.9)
    claims = run.shield.conceptors()["0"][0].matrix()
    start = torch.cat([run.model[0].weight, run.model[0].bias[:, None]], 1).detach()
    way(run)
    end = torch.cat([run.model[0].weight, run.model[0].bias[:, None]], 1).detach()
    assert (end - start).norm() > 1e-4
    torch.testing.assert_close((end - start) @ claims, torch.zeros_like(start), rtol=0, atol=1e-12)


def test_momentum_of_a_checkpoint_is_not_trusted_after_another_task() -> None:
    one = Run(True, hard=True, momentum=0.9)
    for step in range(3):
        plain(one, step)
    model = network()
    model.load_state_dict(one.model.state_dict())
    shield = Shield(model, 3.0, hard=True, warn_at_quota=1.0)
    shield.load_state_dict(one.shield.state_dict())
    shield.remember(data(77))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer.load_state_dict(one.optimizer.state_dict())
    shield.guard(optimizer)
    claims = shield.conceptors()["0"][0].matrix()
    start = torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach()
    for step in range(3):
        optimizer.zero_grad()
        (model(data(step + 5)) - 1).square().mean().backward()
        optimizer.step()
    end = torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach()
    torch.testing.assert_close((end - start) @ claims, torch.zeros_like(start), rtol=0, atol=1e-12)


def test_another_optimizer_of_the_same_weights_sees_raw_gradients() -> None:
    found = []
    for by_inputs in (True, False):
        run = Run(by_inputs, hard=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inputs, "WORTH", 1 if by_inputs else 2**62)
            adam = run.shield.guard(torch.optim.Adam(run.model.parameters(), lr=0.01))
        sgd = run.optimizer
        for step in range(6):
            run.optimizer = adam if step % 2 else sgd
            plain(run, step)
        found.append([p.detach() for p in run.model.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-13)


def test_other_weights_in_their_place_get_plain_gradients() -> None:
    run, bare = Run(True, hard=False), network()
    others = {n: p.detach().clone().requires_grad_() for n, p in run.model.named_parameters()}
    out = torch.func.functional_call(run.model, others, (data(3),))
    (out - 1).square().mean().backward()
    (bare(data(3)) - 1).square().mean().backward()
    for name, parameter in bare.named_parameters():
        torch.testing.assert_close(others[name].grad, parameter.grad, rtol=0, atol=1e-15)


def test_compiled_models_stay_in_one_graph() -> None:
    run = Run(True, hard=True)
    claims = run.shield.conceptors()["0"][0].matrix()
    start = torch.cat([run.model[0].weight, run.model[0].bias[:, None]], 1).detach()
    compiled: Any = torch.compile(run.model, backend="eager", fullgraph=True)
    (compiled(data(2)) - 1).square().mean().backward()
    run.optimizer.step()
    end = torch.cat([run.model[0].weight, run.model[0].bias[:, None]], 1).detach()
    assert run.trusted == 0
    torch.testing.assert_close((end - start) @ claims, torch.zeros_like(start), rtol=0, atol=1e-12)


def test_processes_that_share_gradients_do_it_by_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process knows only its own part of the gradient."""
    run = Run(True, hard=False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    plain(run, 0)
    assert run.trusted == 0
