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
    remembered = run.model(data(1)).detach()
    claims = run.shield.conceptors()["0"][0].matrix()
    start = torch.cat([run.model[0].weight, run.model[0].bias[:, None]], 1).detach()
    for step in range(8):
        run.optimizer.zero_grad()
        spoil(run) if step % 2 else run.loss(data(2)).backward()
        run.optimizer.step()
    end = torch.cat([run.model[0].weight, run.model[0].bias[:, None]], 1).detach()
    assert (end - start).norm() > 1e-3
    torch.testing.assert_close((end - start) @ claims, torch.zeros_like(start), rtol=0, atol=1e-12)
    assert run.model(data(1)).shape == remembered.shape


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
