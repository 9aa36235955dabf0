"""Learning from a network's outputs for batches, and from the inputs of its layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors import LayerInputs, PatchFeatures, RandomFeatures, Readout, Shield
from conceptors.readout import Scaling
from helpers import normal
from readout.common import DIM, accuracy, assert_close, assert_same_state, samples, state

# --- batches --------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh())


def data(count: int = 100) -> tuple[Tensor, Tensor]:
    return samples(0, count, dtype=torch.float32)


@pytest.mark.parametrize("lift", [0, 10])
@pytest.mark.parametrize("sizes", [[100], [1, 2, 97], [1] * 100])
def test_one_pass_is_learning_all_features(lift: int, sizes: list[int]) -> None:
    """Also if the first batches are tiny: the lift waits for more."""
    X, y = data()
    model = network()
    passed = Readout(8, lift).learn_from(model, list(zip(X.split(sizes), y.split(sizes))))
    with torch.no_grad():
        h = model.eval()(X)
    direct = Readout(8, lift).learn(h, y)
    assert passed.regularization == pytest.approx(direct.regularization, rel=1e-4)
    assert_close(passed(h), direct(h), 1e-4)


class Masked(nn.Module):
    """Takes arguments by name and no labels, as most backbones."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return ids * mask


def test_batches_by_name() -> None:
    X, y = data()
    ones = torch.ones_like(X)
    direct = Readout(DIM).learn(X, y).predict(X)
    named = Readout(DIM).learn_from(Masked(), [{"ids": X, "mask": ones, "labels": y}])
    fed = Readout(DIM).learn_from(
        Masked(),
        [{"x": X, "y": y}],
        feed=lambda model, batch: model(batch["x"], ones),
        target=lambda batch: batch["y"],
    )
    assert torch.equal(named.predict(X), direct)
    assert torch.equal(fed.predict(X), direct)
    with pytest.raises(TypeError, match=r"tensor of floats, got dict; .* choose them by feed="):
        Readout(DIM).learn_from(Masked(), [(X, y)], feed=lambda model, batch: {})
    for without_targets in (X, [X], [(X,)]):
        with pytest.raises(TypeError, match=r"no targets were found.*say where they are: target="):
            Readout(DIM).learn_from(nn.Identity(), without_targets)


def test_generators_and_empty_loaders() -> None:
    X, y = data()

    def generate() -> Iterator[tuple[Tensor, Tensor]]:
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


def test_a_bad_batch_undoes_the_whole_pass() -> None:
    X, y = samples(3, 60)
    bad = X.clone()
    bad[5, 2] = torch.nan
    for readout in (Readout(DIM, 10), Readout(DIM, 10).learn(X, y)):
        before = state(readout)
        for batch in ((bad, y), (X[:, 1:], y), (X, y.float())):
            with pytest.raises(ValueError, match=r"finite|shape|so far"):
                readout.learn_from(nn.Identity(), [(X, y)] * 40 + [batch])
            assert_same_state(readout.state_dict(), before)


# --- a body that learns on ------------------------------------------------------------------------


class Watch:
    """A shield whose layers have moved by `now`."""

    now = 0.0
    is_settled = True

    def mark(self) -> float:
        return self.now

    def moved_since(self, mark: float) -> dict[str, float]:
        return {"0": self.now - mark}


def test_a_readout_measures_how_far_its_features_are_out_of_date() -> None:
    shield, readout = Watch(), Readout(DIM)
    with pytest.raises(ValueError, match="empty"):
        readout.learn_from(nn.Identity(), [], shield=shield)
    with pytest.raises(RuntimeError, match=r"learn_from\(\.\.\., shield=shield\) was not called"):
        readout.out_of_date(shield)
    for shield.now in (0.5, 0.7):
        readout.learn_from(nn.Identity(), [data()], shield=shield)
    shield.now = 0.75
    assert readout.out_of_date(shield) == {"0": 0.25}  # since the oldest sums
    shield.is_settled = False
    with pytest.warns(UserWarning, match=r"Call shield\.remember first, then learn_from"):
        readout.learn_from(nn.Identity(), [data()], shield=shield)
    loaded = Readout(DIM)
    loaded.load_state_dict(readout.state_dict())
    with pytest.raises(RuntimeError, match="not since this readout was loaded"):
        loaded.out_of_date(shield)


def test_new_classes_are_separated_by_a_shielded_network_that_never_saw_both() -> None:
    """Two tasks of two classes each."""
    torch.manual_seed(0)
    centres, y = 2 * normal(3, 4, 64).float(), torch.arange(400) % 4
    X = centres[y] + normal(4, 400, 64).float()
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    shield = Shield(model)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01))
    reader = LayerInputs(model, X[:2])
    readout = Readout(reader.out_features, reader.lift(200))
    for task in (y < 2, y >= 2):
        for _ in range(30):
            optimizer.zero_grad()
            functional.cross_entropy(model(X[task]), y[task]).backward()
            optimizer.step()
        shield.remember(X[task])
        readout.learn_from(reader, [(X[task], y[task])], shield=shield)
    assert 0 < max(readout.out_of_date(shield).values()) < 1
    assert accuracy(readout, reader(centres[y] + normal(5, 400, 64).float()), y) > 0.95


# --- inputs of layers -----------------------------------------------------------------------------


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 7), nn.Tanh(),
        nn.Linear(7, 3),
    )  # fmt: skip


class Residual(nn.Module):
    """Two layers with one input, one that is called twice, and one that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.left, self.right = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.again = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = self.left(x) + self.right(x)
        x = self.again(torch.relu(self.again(x.mean((2, 3)))))
        scores: Tensor = self.head(x)
        return scores


class Attention(nn.Module):
    """Tokens and a mask, by name; two layers with the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.query, self.key = nn.Linear(6, 6), nn.Linear(6, 6)
        self.out = nn.Linear(6, 5)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids)
        x = torch.softmax(self.query(x) @ self.key(x).mT, -1) @ x
        scores: Tensor = self.out(x * mask[..., None])
        return scores


def test_inputs_of_all_layers_side_by_side() -> None:
    model, X = mlp().train(), normal(0, 9, 1, 8, 8).float()
    before = state(model)
    reader = LayerInputs(model, X[:2])
    assert reader.widths == {"input": 64, "4": 12, "6": 7}
    rows = reader(X)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert_same_state(model.state_dict(), before)
    model.eval()
    first = torch.relu(model[1](X.flatten(1)))
    second = torch.tanh(model[4](first))
    torch.testing.assert_close(rows, torch.cat([X.flatten(1), first, second], 1).detach())
    assert not rows.requires_grad
    assert LayerInputs(model, X, layers=["4", "6"]).widths == {"input": 64, "4": 12, "6": 7}
    assert LayerInputs(model, X, layers="6").widths == {"input": 64, "6": 7}


def test_a_shared_input_is_read_once_and_a_layer_called_twice_is_averaged() -> None:
    torch.manual_seed(0)
    model, X = Residual(), normal(0, 5, 3, 8, 8).float()
    reader = LayerInputs(model, X[:2])
    assert reader.widths == {"input": 3 * 64, "left": 4 * 16, "again": 4, "head": 4}
    h = torch.relu(model.first(X))
    pooled = functional.adaptive_avg_pool2d(h, 4).flatten(1)
    torch.testing.assert_close(reader(X)[:, 192:256], pooled)
    mean = (model.left(h) + model.right(h)).mean((2, 3))
    both = (mean + torch.relu(model.again(mean))) / 2
    torch.testing.assert_close(reader(X)[:, 256:260], both)


def test_sequences_are_averaged_over_tokens_and_arguments_have_names() -> None:
    torch.manual_seed(0)
    model = Attention()
    batch = {"ids": torch.randint(20, (4, 7)), "mask": torch.ones(4, 7)}
    reader = LayerInputs(model, batch)
    assert reader.widths == {"query": 6, "out": 6}
    torch.testing.assert_close(reader(**batch)[:, :6], model.words(batch["ids"]).mean(1))
    torch.testing.assert_close(reader(batch), reader(**batch))
    assert isinstance(reader.lift(30).parts[0], RandomFeatures)


@pytest.mark.parametrize(
    ("shape", "image", "kind"),
    [
        ((64,), None, RandomFeatures),
        ((64,), (8, 8), RandomFeatures),
        ((1, 8, 8), None, RandomFeatures),
        ((64,), (4, 4, 4), PatchFeatures),
        ((4, 4, 4), None, PatchFeatures),
    ],
)
def test_lifts_suit_the_inputs(shape: tuple[int, ...], image: Any, kind: type) -> None:
    reader = LayerInputs(mlp(), normal(0, 2, *shape).float())
    of_input, of_layers = reader.lift(100, image=image).parts
    assert isinstance(of_input, kind)
    assert getattr(of_input, "image", None) == (image or (shape if len(shape) == 3 else None))
    assert isinstance(of_layers, RandomFeatures)
    assert (of_layers.in_features, of_layers.out_features) == (19, 100)
    assert isinstance(reader.lift(10, image=image).parts[1], Scaling)  # has more already
