"""Mistakes and events that would cost remembered tasks in silence: one test for each."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam
from torch.optim.swa_utils import AveragedModel, update_bn

from conceptors import Shield, UnprotectedWarning
from helpers import drift
from shield.common import mlp, samples, train

rows = partial(samples, count=60, inputs=8)


@pytest.mark.filterwarnings("ignore:few free directions")
@pytest.mark.parametrize("hard", [True, False])
def test_a_head_that_grew_since_a_checkpoint_is_protected(hard: bool) -> None:
    old, model, grown = rows(1), mlp(16, 8), mlp(16, 8)
    shield = Shield(model, hard=hard)
    optimizer = shield.guard(Adam(model.parameters(), lr=1e-3))
    shield.remember(old)
    train(model, optimizer, rows(2), 3)
    grown.load_state_dict(model.state_dict())
    head = nn.Linear(16, 5).double()
    with torch.no_grad():
        head.weight[:3], head.bias[:3] = model[2].weight, model[2].bias
    grown[2] = head
    resumed = Shield(grown, hard=hard)
    resumed.load_state_dict(shield.state_dict())
    optimizer = resumed.guard(Adam(grown.parameters(), lr=1e-3))
    before = grown(old)[:, :3].detach()
    train(grown, optimizer, rows(2), 1)
    assert drift(grown(old)[:, :3], before) < (1e-9 if hard else 0.02)


def test_a_copy_of_a_model_trains_its_own_statistics() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    shield = Shield(model).remember(rows(1))
    average = AveragedModel(model)
    update_bn([5 + rows(2)], average)
    copied: Any = average.module
    assert float(copied[1].running_mean.abs().max()) > 0.1
    assert shield.n_tasks == 1


@pytest.mark.parametrize("decades", [0, 7, 9, 12])
def test_a_column_of_another_scale_hides_nothing(decades: int) -> None:
    x = rows(1, count=200, rank=4)
    x[:, 0] = 10.0**decades * (1 + 1e-3 * torch.randn(200, dtype=torch.float64))
    torch.manual_seed(0)
    model = nn.Linear(8, 3).double()
    with torch.no_grad():
        model.weight[:, 0] *= 10.0**-decades  # outputs in which every column counts
    shield = Shield(model, hard=True)
    optimizer = shield.guard(Adam(model.parameters(), lr=1e-2))
    shield.remember(x)
    before = model(x).detach()
    train(model, optimizer, rows(2, rank=8), 20)
    assert drift(model(x), before) < 1e-4


@pytest.mark.parametrize(
    "sizes", [{2: 1e-18}, {0: 1e-30, 5: 1e-15}, {i: 10.0**-i for i in range(8)}]
)
def test_nearly_dead_features_hide_nothing(sizes: dict[int, float]) -> None:
    """As those of a trained normalisation, whose weights for some features are nearly zero."""
    x = rows(1, rank=3)
    for i, size in sizes.items():
        x[:, i] *= size
    model = nn.Linear(8, 3).double()
    shield = Shield(model, hard=True)
    optimizer = shield.guard(Adam(model.parameters(), lr=1e-2))
    before = shield.remember(x).model(x).detach()
    train(model, optimizer, rows(2, rank=8), 20)
    assert drift(model(x), before) < 1e-9


def test_a_hard_shield_sees_rare_samples_among_many() -> None:
    common = torch.zeros(60_000, 6, dtype=torch.float64)
    common[:, 0] = 1
    common[30_011, 5] = 3.0
    model = nn.Linear(6, 2).double()
    shield = Shield(model, hard=True)
    optimizer = shield.guard(Adam(model.parameters(), lr=1e-2))
    shield.remember(common.split(1000))
    rare = common[30_011:30_012]
    before = model(rare).detach()
    train(model, optimizer, torch.randn(20, 6, dtype=torch.float64), 10)
    assert drift(model(rare), before) < 1e-9


class Switching(nn.Module):
    """Uses its layer's weight directly in the third batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 3).double(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.layer(x)
        return result if self.calls < 3 else result + functional.linear(2 * x, self.layer.weight)


def test_every_batch_is_checked_for_direct_uses_of_weights() -> None:
    with pytest.raises(ValueError, match=r"layer \(used by linear"):
        Shield(Switching()).remember(list(rows(1).split(10)))


@pytest.mark.parametrize("part", ["claimed", "anchors"])
def test_a_state_that_lacks_a_conceptor_or_has_other_shapes_is_refused(part: str) -> None:
    model, fresh = nn.Linear(8, 3).double(), Shield(nn.Linear(8, 3).double())
    shield = Shield(model)
    optimizer = shield.guard(Adam(model.parameters()))
    shield.remember(rows(1))
    train(model, optimizer, rows(2), 1)
    state = shield.state_dict()
    names = [name for name in state["tensors"] if name.startswith(part)]
    assert names
    for name in names:
        if part == "claimed":
            del state["tensors"][name]
        else:
            state["tensors"][name] = torch.zeros(7, 7, 7)
    with pytest.raises(
        ValueError, match=r"the state (is damaged|does not fit).*nothing was loaded"
    ):
        fresh.load_state_dict(state)
    assert fresh.n_tasks == 0


def _normalised() -> tuple[Any, Shield, torch.optim.Optimizer]:
    """A network with BatchNorm that has learned and remembered a task."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    shield = Shield(model)
    optimizer = shield.guard(Adam(model.parameters(), lr=1e-3))
    model(rows(1))
    shield.remember(rows(1))
    return model, shield, optimizer


def _replace(model: nn.Sequential) -> None:
    twin = nn.BatchNorm1d(4).double()
    twin.load_state_dict(model[1].state_dict())
    model[1] = twin
    model(5 + rows(2))  # trains the statistics of the new layer


@pytest.mark.parametrize("then", ["step", "remember"])
@pytest.mark.parametrize(
    "change",
    [
        lambda model: update_bn([5 + rows(2)], model),
        lambda model: model[1].reset_running_stats(),
        lambda model: model[1].running_var.mul_(2.0),
        _replace,
    ],
)
def test_changed_statistics_are_reported(change: Any, then: str) -> None:
    model, shield, optimizer = _normalised()
    change(model)
    notice: dict[str, Callable[[], object]] = {
        "step": lambda: train(model, optimizer, rows(2), 1),
        "remember": lambda: shield.remember(rows(2)),
    }
    with pytest.warns(UnprotectedWarning, match=r"buffers have changed .*: 1\.running_(mean|var)"):
        notice[then]()


def test_statistics_that_may_change_are_not_reported() -> None:
    model, shield, optimizer = _normalised()
    train(model, optimizer, rows(2), 3)  # frozen
    shield.load_state_dict(shield.state_dict())
    model[1].running_var.fill_(1.0)  # before the first step after a load: part of loading
    train(model, optimizer, rows(2), 3)
    shield.detach()
    following = Shield(model, batchnorm="follow").remember(rows(1))
    model(rows(2))
    following.remember(rows(2))


class RunningMean(nn.Module):
    """Subtracts a running mean, which is a buffer."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3).double()
        self.register_buffer("mean", torch.zeros(8, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return self.layer(x - self.mean)  # type: ignore[no-any-return]


def test_other_buffers_that_training_changes_are_reported_once() -> None:
    model = RunningMean()
    shield = Shield(model).remember(rows(1))
    optimizer = shield.guard(Adam(model.parameters()))
    with pytest.warns(UnprotectedWarning, match="buffers have changed .*: mean"):
        train(model, optimizer, rows(2), 1)
    train(model, optimizer, rows(2), 4)
    excluded = RunningMean()
    shield = Shield(excluded, exclude="mean").remember(rows(1))
    train(excluded, shield.guard(Adam(excluded.parameters())), rows(2), 1)


def test_changes_made_between_steps_add_up() -> None:
    model = mlp(16, 8)
    shield = Shield(model).remember(rows(1))
    optimizer = shield.guard(Adam(model.parameters(), lr=1e-3))

    def shrink(steps: int) -> None:
        for _ in range(steps):
            train(model, optimizer, rows(2), 1)
            torch._foreach_mul_([p.detach() for p in model.parameters()], 0.97)

    shrink(3)
    with pytest.warns(UnprotectedWarning, match="weights have moved in protected directions"):
        shrink(10)


def test_hard_protection_warns_where_a_sketch_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conceptors.shield.options._DENSE", 800)
    shield = Shield(nn.Linear(840, 2), hard=True)  # a sketch of 105 directions
    shield.remember(torch.randn(104, 3) @ torch.randn(3, 840))  # fits
    with pytest.warns(UnprotectedWarning, match=r"(?s)wide layers: Linear.*rank=1\.0"):
        shield.remember(torch.randn(130, 840))


@pytest.mark.parametrize("width", [8, 8200])
def test_inputs_whose_squares_overflow_are_refused(width: int) -> None:
    model = nn.Sequential(nn.Linear(width, 3)).double()
    with pytest.raises(ValueError, match=r"(?i)0.*overflow.*nothing was remembered"):
        Shield(model).remember(1e200 * torch.randn(9, width, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripted_modules_are_refused() -> None:
    scripted = torch.jit.script(nn.Linear(8, 3))
    with pytest.raises(ValueError, match="shield the model before it is scripted"):
        Shield(scripted)
    with pytest.raises(ValueError, match=r"1\.weight .*torch\.jit\.script"):
        Shield(nn.Sequential(nn.Linear(8, 8), scripted))


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(self.layer)(x)  # type: ignore[no-any-return]


def test_a_layer_under_vmap_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layer layer .*torch\.func\.vmap"):
        Shield(Mapped()).remember(rows(1))
