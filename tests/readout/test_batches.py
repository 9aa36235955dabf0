"""Learning from what a network makes of batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Readout, Shield
from readout.common import CLASSES, DIM, assert_close, samples

Batch = tuple[Tensor, Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh())


def features(model: nn.Module, X: Tensor) -> Tensor:
    training = model.training
    with torch.no_grad():
        found: Tensor = model.eval()(X)
    model.train(training)
    return found


def data(count: int = 100) -> Batch:
    return samples(0, count, dtype=torch.float32)


@pytest.mark.parametrize("lift", [0, 10])
@pytest.mark.parametrize("sizes", [[100], [1, 2, 97], [1] * 100])
def test_one_pass_is_learning_all_features(lift: int, sizes: list[int]) -> None:
    """Also if the first batches are tiny: the lift waits for more."""
    X, y = data()
    model = network()
    pairs = list(zip(X.split(sizes), y.split(sizes)))
    found = Readout(8, lift).learn_from(model, pairs)
    wanted = Readout(8, lift).learn(features(model, X), y)
    assert found.regularization == pytest.approx(wanted.regularization, rel=1e-4)
    assert_close(found(features(model, X)), wanted(features(model, X)), 1e-4)
    assert found.n_samples == 100


def test_the_lift_is_fixed_once_enough_was_seen() -> None:
    X, y = samples(0, 5000, dtype=torch.float32)
    found = Readout(DIM, 10).learn_from(nn.Identity(), list(zip(X.split(50), y.split(50))))
    wanted = Readout(DIM, 10).calibrate(X[:2050]).learn(X, y)
    assert_close(found(X), wanted(X), 1e-3)
    assert torch.equal(found.counts, wanted.counts)


def test_the_network_is_left_as_it_was() -> None:
    X, y = data()
    model = network().train()
    model[3].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loader = DataLoader(TensorDataset(X, y), batch_size=30, shuffle=True)
    generator = torch.get_rng_state()
    Readout(8, 10).learn_from(model, loader)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in model] == [True, True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="targets have shape"):
        Readout(8).learn_from(model, [(X, y[1:])])
    assert model.training
    assert torch.is_grad_enabled()


class Reader(nn.Module):
    """Takes no labels, as most backbones."""

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"states": ids * mask}


def test_batches_by_name() -> None:
    X, y = data()
    batches = [{"ids": X, "mask": torch.ones_like(X), "labels": y}]

    class Plain(Reader):
        def forward(self, ids: Tensor, mask: Tensor) -> Any:
            return super().forward(ids, mask)["states"]

    found = Readout(DIM).learn_from(Plain(), batches)
    assert torch.equal(found.predict(X), Readout(DIM).learn(X, y).predict(X))
    renamed = [{"x": X, "y": y, "mask": torch.ones_like(X)}]
    other = Readout(DIM).learn_from(
        Reader(),
        renamed,
        feed=lambda model, batch: model(batch["x"], batch["mask"])["states"],
        target=lambda batch: batch["y"],
        task="named",
    )
    assert torch.equal(other.predict(X), found.predict(X))
    assert other.tasks == ["named"]
    with pytest.raises(TypeError, match="gave a dict, not a tensor of features; say how"):
        Readout(DIM).learn_from(Reader(), batches)
    with pytest.raises(TypeError, match="does not tell its targets; say how by target="):
        Readout(DIM).learn_from(Plain(), [{"ids": X, "mask": X}])


def test_batches_without_targets_are_refused() -> None:
    X, _ = data()
    for batches in (X, [X], [(X,)], [[X]]):
        readout = Readout(DIM)
        with pytest.raises(TypeError, match="does not tell its targets"):
            readout.learn_from(nn.Identity(), batches)
        assert readout.n_samples == 0


def test_generators_and_empty_loaders() -> None:
    X, y = data()

    def generate() -> Iterator[Batch]:
        yield from zip(X.split(40), y.split(40))

    batches = generate()
    readout = Readout(DIM).learn_from(nn.Identity(), batches)
    assert readout.n_samples == 100
    empty: list[Any] = [batches, [], X[:0]]
    for used_up in empty:
        with pytest.raises(ValueError, match="the loader is empty or used up"):
            readout.learn_from(nn.Identity(), used_up)
    with pytest.raises(TypeError, match=r"must be an nn\.Module, got function; .*feed="):
        readout.learn_from(lambda x: x, batches)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="learn_from takes batches"):
        readout.learn_from(nn.Identity(), (X, y))
    assert readout.n_samples == 100


def test_batches_that_differ_are_refused() -> None:
    X, y = data()
    with pytest.raises(ValueError, match=r"features have shape .* expected \[n, 6\]"):
        Readout(DIM).learn_from(nn.Identity(), [(X, y), (X[:, 1:], y)])
    with pytest.raises(ValueError, match="labels were learned so far"):
        Readout(DIM, 5).learn_from(nn.Identity(), [(X, y), (X, y.float())])
    with pytest.raises(ValueError, match="needs the name of the task"):
        Readout(DIM, weighting="tasks").learn_from(nn.Identity(), [(X, y)])
    half = Readout(DIM).learn_from(nn.Identity(), [(X.half(), y), (X, y)])
    assert half.n_samples == 200


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    X, y = data()
    readout = Readout(DIM).learn_from(nn.Identity(), [(X, y)] * 3, progress=True)
    assert "3batch" in capsys.readouterr().err.replace(" ", "")
    assert int(readout.counts.sum()) == 300
    assert readout.counts.shape == (CLASSES,)


class Watch:
    """A shield's eye on its layers."""

    now = 0.0
    is_settled = True

    def mark(self) -> float:
        return self.now

    def moved_since(self, mark: float) -> dict[str, float]:
        return {"0": self.now - mark}


def test_a_readout_tells_how_far_its_features_are_out_of_date() -> None:
    X, y = data()
    shield, readout = Watch(), Readout(DIM)
    with pytest.raises(RuntimeError, match=r"learn_from\(\.\.\., shield=shield\)"):
        readout.out_of_date(shield)
    with pytest.raises(ValueError, match="empty"):
        readout.learn_from(nn.Identity(), [], shield=shield)
    with pytest.raises(RuntimeError, match="yet"):
        readout.out_of_date(shield)
    for now in (0.5, 0.7):
        shield.now = now
        readout.learn_from(nn.Identity(), [(X, y)], shield=shield)
    shield.now = 0.75
    assert readout.out_of_date(shield) == {"0": 0.25}  # since the oldest sums
    shield.is_settled = False  # remember was not called yet
    with pytest.warns(UserWarning, match=r"call shield\.remember, then learn_from"):
        readout.learn_from(nn.Identity(), [(X, y)], shield=shield)


def test_how_far_features_are_out_of_date_is_not_saved() -> None:
    X, y = data()
    shield = Watch()
    saved = Readout(DIM).learn_from(nn.Identity(), [(X, y)], shield=shield).state_dict()
    loaded = Readout(DIM)
    loaded.load_state_dict(saved)
    shield.now = 0.5
    with pytest.raises(RuntimeError, match="not since this readout was loaded"):
        loaded.out_of_date(shield)
    loaded.learn_from(nn.Identity(), [(X, y)], shield=shield)
    shield.now = 0.75
    assert loaded.out_of_date(shield) == {"0": 0.25}  # the first half is not known any more


def test_features_that_hard_conceptors_leave_out_are_not_seen_to_move() -> None:
    body, (X, y) = nn.Linear(DIM, DIM), data()
    shield = Shield(body, 0.5, hard=True, warn_at_quota=1.0)
    optimizer = shield.guard(torch.optim.SGD(body.parameters(), lr=0.1))
    shield.remember(X)
    readout = Readout(DIM).learn_from(body, [(X, y)], shield=shield)
    before = body(X).detach()
    for _ in range(20):
        optimizer.zero_grad()
        body(X).square().mean().backward()
        optimizer.step()
    assert float((body(X).detach() - before).norm() / before.norm()) > 0.05  # what was not claimed
    assert max(readout.out_of_date(shield).values()) < 1e-3


@pytest.mark.parametrize("task", [None, "new"])
def test_a_bad_batch_undoes_the_whole_pass(task: str | None) -> None:
    X, y = samples(3, 60)
    bad = X.clone()
    bad[5, 2] = torch.nan
    fresh = Readout(DIM, 10)
    with pytest.raises(ValueError, match="finite"):
        fresh.learn_from(nn.Identity(), [(X, y), (bad, y)], task=task)
    assert (fresh.tasks, fresh.n_samples) == ([], 0)
    assert "new" in repr(fresh)
    fresh.learn_from(nn.Identity(), [(3 * X, y.float())])  # its lift and kind are free again

    readout = Readout(DIM, 10).learn_from(nn.Identity(), [(X, y)])
    before, scores = copy.deepcopy(readout.state_dict()), readout(X)
    with pytest.raises(ValueError, match="finite"):
        readout.learn_from(nn.Identity(), [(X, y + 20), (bad, y)], task=task)
    assert_same_state(readout.state_dict(), before)
    assert torch.equal(readout(X), scores)


def assert_same_state(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
