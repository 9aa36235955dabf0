"""Learning from a network's outputs for batches, and from the inputs of its layers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors import LayerInputs, PatchFeatures, RandomFeatures, Readout
from conceptors.readout import Scaling
from helpers import normal
from readout.common import DIM, accuracy, assert_close, assert_same_state, samples, state


def data() -> tuple[Tensor, Tensor]:
    return samples(0, 100, dtype=torch.float32)


@pytest.mark.parametrize("lift", [0, 10])
@pytest.mark.parametrize("sizes", [[100], [1, 2, 97], [1] * 100])
def test_one_pass_is_learning_all_features(lift: int, sizes: list[int]) -> None:
    """Also if the first batches are tiny: the lift waits for more."""
    X, y = data()
    model = nn.Sequential(nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh())
    pairs = list(zip(X.split(sizes), y.split(sizes)))
    with torch.no_grad():
        h = model.eval()(X)
    model.train()
    direct = Readout(8, lift).learn(h, y)
    feed = lambda network, batch: network(batch[1])  # noqa: E731
    named = [{"input": part, "labels": labels} for part, labels in pairs]
    readouts = [
        Readout(8, lift).learn_from(model, pairs),
        Readout(8, lift).learn_from(model, named),
        Readout(8, lift).learn_from(model, [(y, X)], feed=feed, target=lambda batch: batch[0]),
    ]
    for readout in readouts:
        assert readout.solution.regularization == pytest.approx(
            direct.solution.regularization, rel=1e-4
        )
        assert_close(readout(h), direct(h), 1e-4)


def test_a_pass_that_fails_learns_nothing() -> None:
    X, y = samples(3, 60)
    bad, batches = X.clone(), iter([(X, y)])
    bad[5, 2] = torch.nan

    def interrupted() -> Iterator[Any]:
        yield from [(X, y)] * 40
        raise KeyboardInterrupt("stopped")

    passes: list[tuple[Any, str]] = [
        ([(X, y)] * 40 + [(bad, y)], "infinite"),
        ([(X, y)] * 40 + [(X, y.float())], "for numbers see"),
        (interrupted(), "stopped|used up"),
        (X, "target="),
        ([], "the loader is empty or used up"),
        (batches, "the loader is empty or used up"),
        ((X, y.float()), "learn_from takes batches"),
    ]
    Readout(DIM).learn_from(nn.Identity(), batches)
    for readout in (Readout(DIM, 10), Readout(DIM, 10).learn(X, y)):
        before = state(readout)
        for loader, message in passes:
            with pytest.raises((ValueError, TypeError, KeyboardInterrupt), match=message):
                readout.learn_from(nn.Identity(), loader)
            assert_same_state(readout.state_dict(), before)
        with pytest.raises(TypeError, match=r"tensor of floats, got dict; .* by feed="):
            readout.learn_from(nn.Identity(), [(X, y)], feed=lambda model, batch: {})
        with pytest.raises(TypeError, match=r"must be an nn\.Module, got function; .*feed="):
            readout.learn_from(lambda x: x, [(X, y)])  # type: ignore[arg-type]


class Branches(nn.Module):
    """Two layers with one input, one that is called twice, and one that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1)
        self.again, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.left(x + 1) + self.right(x + 1)
        return self.again(torch.relu(self.again(x.mean((2, 3)))))


def test_inputs_of_all_layers_side_by_side() -> None:
    model: Any = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 7), nn.Tanh(),
        nn.Linear(7, 3),
    ).train()  # fmt: skip
    X = normal(0, 9, 1, 8, 8).float()
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
    for image, count, kinds in [
        (None, 10, [RandomFeatures, Scaling]),  # layers have more than 10 features
        ((8, 8), 100, [RandomFeatures, RandomFeatures]),
        ((4, 4, 4), 100, [PatchFeatures, RandomFeatures]),
    ]:
        lift = reader.lift(count, image=image)
        assert [type(part) for part in lift.parts] == kinds
        assert getattr(lift.parts[0], "image", None) == (image or (1, 8, 8))
        assert lift.parts[1].in_features == 19


def test_a_shared_input_is_read_once_and_a_layer_called_twice_is_averaged() -> None:
    torch.manual_seed(0)
    model, X = Branches(), normal(0, 5, 3, 8, 8).float()
    reader = LayerInputs(model, X[:2])
    assert reader.widths == {"input": 3 * 64, "left": 3 * 16, "again": 4}
    pooled = functional.adaptive_avg_pool2d(X + 1, 4).flatten(1)
    torch.testing.assert_close(reader(X)[:, 192:240], pooled)
    mean = (model.left(X + 1) + model.right(X + 1)).mean((2, 3)).detach()
    both = (mean + torch.relu(model.again(mean))) / 2
    torch.testing.assert_close(reader(X)[:, 240:], both.detach())


def test_sequences_are_averaged_over_tokens_and_arguments_have_names() -> None:
    model = nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 5))
    batch = {"input": torch.randint(20, (4, 7))}
    reader = LayerInputs(model, batch)
    assert reader.widths == {"input": 20, "1": 6}
    words = functional.one_hot(batch["input"], 20).sum(1).float()
    expected = torch.cat([words, model[0](batch["input"]).mean(1).detach()], 1)
    torch.testing.assert_close(reader(**batch), expected)
    torch.testing.assert_close(reader(batch), reader(**batch))
    assert [type(part) for part in reader.lift(30).parts] == [Scaling, RandomFeatures]
    assert reader.lift(4).parts[0].out_features == 4  # a large vocabulary


class Words(nn.Module):
    """A transformer that classifies texts, with embeddings of positions and of words."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.place, self.word = nn.Embedding(20, 16), nn.Embedding(words, 16, padding_idx=0)
        self.body = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        places = torch.arange(ids.shape[1]).expand(len(ids), -1)
        logits: Tensor = self.head(self.body(self.word(ids) + self.place(places)).mean(1))
        return logits


def test_padding_is_not_counted() -> None:
    ids = torch.tensor([[3, 4, 3, 0], [1, 2, 5, 5]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    reader = LayerInputs(Words(6, 2), ids, layers="head")
    assert reader.widths == {"input": 6, "head": 16}
    assert reader(ids)[:, :6].tolist() == [[0, 0, 0, 2, 1, 0], [0, 1, 1, 0, 0, 2]]
    assert reader(ids, attention_mask=mask)[1, :6].tolist() == [0, 1, 1, 0, 0, 1]


Tasks = list[tuple[Tensor, Tensor, Tensor, Tensor]]  # training and test data of each task


def texts(seed: int) -> tuple[nn.Module, Tasks]:
    """Five tasks of two topics, each with its own frequencies of 100 words."""
    draw = torch.Generator().manual_seed(seed)
    topics = torch.softmax(torch.randn(10, 99, generator=draw), 1)
    tasks: Tasks = []
    for first in range(0, 10, 2):
        y = first + torch.arange(240) % 2
        x = 1 + torch.multinomial(topics[y], 15, replacement=True, generator=draw)
        tasks.append((x[:40], y[:40], x[40:], y[40:]))
    return Words(100, 10), tasks


def regions(seed: int) -> tuple[nn.Module, Tasks]:
    """Five regions of a table with eight columns, each divided into two classes by a quadric."""
    draw = torch.Generator().manual_seed(seed)
    tasks: Tasks = []
    for first in range(0, 10, 2):
        centre = 10 * torch.randn(8, generator=draw)
        z, form = (torch.randn(n, 8, generator=draw) for n in (400, 8))
        y = first + ((z @ form * z).sum(1) + 3 * z[:, 0] > 0).long()
        tasks.append((centre + z[:120], y[:120], centre + z[120:], y[120:]))
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, 10)), tasks  # fmt: skip


@pytest.mark.parametrize("problem", [texts, regions])
@pytest.mark.parametrize("seed", range(20, 23))
def test_reading_everything_is_not_worse_than_reading_the_input(problem: Any, seed: int) -> None:
    """The recipe of the docs, after a network is trained on the first task."""
    torch.manual_seed(seed)
    model, tasks = problem(seed)
    x, y, *_ = tasks[0]
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    reader = LayerInputs(model, x[:2])
    readout = Readout(reader.out_features, reader.lift(300))
    width = reader.widths["input"]
    inputs: Any = reader.lift(300).parts[0]
    alone = Readout(width, inputs)
    for x, y, *_ in tasks:
        readout.learn_from(reader, zip(x.split(30), y.split(30)))
        alone.learn(reader(x)[:, :width], y)
    test, labels = (torch.cat([task[k] for task in tasks]) for k in (2, 3))
    rows = reader(test)
    assert accuracy(readout, rows, labels) > accuracy(alone, rows[:, :width], labels) - 0.01
