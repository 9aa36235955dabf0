"""What enters the layers of a network, as features."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors import LayerInputs, PatchFeatures, RandomFeatures, Readout, Shield
from conceptors.readout import Scaling
from helpers import normal


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
        found: Tensor = self.head(x)
        return found


class Reader(nn.Module):
    """Tokens and a mask, by name; two maps of the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.query, self.key = nn.Linear(6, 6), nn.Linear(6, 6)
        self.out = nn.Linear(6, 5)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids)
        x = torch.softmax(self.query(x) @ self.key(x).mT, -1) @ x
        found: Tensor = self.out(x * mask[..., None])
        return found


def test_inputs_of_all_layers_side_by_side() -> None:
    model, x = mlp(), normal(0, 9, 1, 8, 8).float()
    reader = LayerInputs(model, x[:2])
    assert reader.widths == {"input": 64, "4": 12, "6": 7}
    model.eval()
    first = torch.relu(model[1](x.flatten(1)))
    second = torch.tanh(model[4](first))
    wanted = torch.cat([x.flatten(1), first, second], 1)
    torch.testing.assert_close(reader(x), wanted)
    assert reader.out_features == 83 == reader(x).shape[1]
    assert "6: 7" in repr(reader)


def test_the_network_is_left_as_it_is() -> None:
    model, x = mlp().train(), normal(0, 9, 1, 8, 8).float()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    reader = LayerInputs(model, x[:2])
    assert torch.equal(reader(x), reader(x))  # in evaluation mode, whatever it was in
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not reader(x).requires_grad
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_what_layers_share_is_read_once_and_what_they_get_twice_is_averaged() -> None:
    torch.manual_seed(0)
    model, x = Residual(), normal(0, 5, 3, 8, 8).float()
    reader = LayerInputs(model, x[:2], grid=2)
    assert reader.widths == {"input": 3 * 64, "left": 4 * 4, "again": 4, "head": 4}
    h = torch.relu(model.first(x))
    pooled = functional.adaptive_avg_pool2d(h, 2).flatten(1)
    torch.testing.assert_close(reader(x)[:, 192:208], pooled)
    mean = (model.left(h) + model.right(h)).mean((2, 3))
    both = (mean + torch.relu(model.again(mean))) / 2
    torch.testing.assert_close(reader(x)[:, 208:212], both)


def test_sequences_are_averaged_over_tokens_and_arguments_have_names() -> None:
    torch.manual_seed(0)
    model = Reader()
    batch = {"ids": torch.randint(20, (4, 7)), "mask": torch.ones(4, 7)}
    reader = LayerInputs(model, batch)
    assert reader.widths == {"query": 6, "out": 6}
    torch.testing.assert_close(reader(**batch)[:, :6], model.words(batch["ids"]).mean(1))
    torch.testing.assert_close(reader(batch), reader(**batch))
    assert isinstance(reader.lift(30).parts[0], RandomFeatures)


def test_layers_can_be_named() -> None:
    model, x = mlp(), normal(0, 9, 64).float()
    assert LayerInputs(model, x, layers="6", inputs=False).widths == {"6": 7}
    assert LayerInputs(model, x, layers=["4", "6"]).widths == {"input": 64, "4": 12, "6": 7}
    bare = LayerInputs(nn.Linear(3, 2), normal(0, 4, 3).float())
    assert bare.widths == {"input": 3}
    assert [part.out_features for part in bare.lift(9).parts] == [9]


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
def test_lifts_suit_what_they_are_of(shape: tuple[int, ...], image: Any, kind: type) -> None:
    reader = LayerInputs(mlp(), normal(0, 2, *shape).float())
    of_input, given = reader.lift(100, image=image).parts
    assert isinstance(of_input, kind)
    assert getattr(of_input, "image", None) == (image or (shape if len(shape) == 3 else None))
    assert isinstance(given, RandomFeatures)
    assert (given.in_features, given.out_features) == (19, 100)
    assert isinstance(reader.lift(10, image=image).parts[1], Scaling)  # more than that already


def test_new_classes_are_told_apart_by_a_network_that_never_saw_both() -> None:
    """Two tasks of two classes each."""
    torch.manual_seed(0)
    centres = 2 * normal(3, 4, 64).float()
    y = torch.arange(400) % 4
    x = centres[y] + normal(4, 400, 64).float()
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    shield = Shield(model, warn_at_quota=1.0)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01))
    reader = LayerInputs(model, x[:2])
    readout = Readout(reader.out_features, reader.lift(200))
    for classes in ((0, 1), (2, 3)):
        own = (y == classes[0]) | (y == classes[1])
        for _ in range(30):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[own]), y[own]).backward()
            optimizer.step()
        shield.remember(x[own])
        readout.learn_from(reader, [(x[own], y[own])], shield=shield)
    new = centres[y] + normal(5, 400, 64).float()
    assert float((readout.predict(reader(new)) == y).float().mean()) > 0.95


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerInputs(len, torch.ones(2, 3)), "takes an nn.Module, got builtin"),  # type: ignore[arg-type]
        (lambda: LayerInputs(mlp(), [torch.ones(2, 64)]), "tensor, or a mapping .* got list"),  # type: ignore[arg-type]
        (LayerInputs(mlp(), torch.ones(2, 64)), "must be a tensor of floats.*NoneType"),
        (lambda: LayerInputs(mlp(), torch.ones(2, 64), layers="head"), "no layer is called 'head'"),
        (lambda: LayerInputs(mlp(), torch.ones(2, 64), grid=0), "grid must be at least 1"),
        (
            lambda: LayerInputs(nn.ReLU(), torch.ones(2, 64), inputs=False),
            "none of these layers was called",
        ),
        (
            lambda: LayerInputs(Residual(), torch.ones(2, 3, 8, 8))(torch.ones(2, 3, 9, 8)),
            r"layer 'input' has 216 features for this input, and 192",
        ),
        (
            lambda: LayerInputs(mlp(), torch.ones(2, 64))(torch.ones(2, 64).long()),
            r"must be a tensor of floats, as the example; got \[2, 64\] of torch.int64",
        ),
        (
            lambda: LayerInputs(mlp(), torch.ones(2, 64)).lift(10, image=(9, 9)),
            r"\(c, h, w\) with 64 numbers, got \(9, 9\)",
        ),
        (
            lambda: LayerInputs(mlp(), torch.ones(2, 64), inputs=False).lift(10, image=(8, 8)),
            "image is for readers of the input itself",
        ),
    ],
)
def test_what_cannot_be_read_is_said(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.b(self.a(x.transpose(0, 1)))
        return found


class Sometimes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        self.whole = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.b(x) if self.whole else x


def test_rows_that_are_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="different numbers of rows"):
        LayerInputs(TimeFirst(), torch.ones(2, 5, 3))
    model = Sometimes()
    reader = LayerInputs(model, torch.ones(2, 3))
    model.whole = False
    with pytest.raises(ValueError, match="layer 'b' was not called"):
        reader(torch.ones(2, 3))


class Shapes(nn.Module):
    """Layers whose inputs are alike in memory and not in meaning; one that is called `input`."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Conv2d(2, 4, 1)
        self.before, self.after = nn.Linear(4, 3), nn.Linear(4, 3)
        self.channels, self.tokens = nn.Linear(3, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x.clamp_(min=0)  # the reader has seen it before
        h = self.input(x).mean((2, 3)).unsqueeze(1).expand(-1, 4, -1).contiguous()
        skipped = self.before(h)
        h = h.relu_()
        h = self.after(h) + skipped
        found: Tensor = self.channels(h) + self.tokens(h.mT.contiguous()).mean(1, keepdim=True)
        return found


def test_inputs_that_are_alike_in_memory_only_are_all_read() -> None:
    torch.manual_seed(0)
    x = normal(0, 3, 2, 4, 4).float()
    reader = LayerInputs(Shapes(), x.clone())
    names = ["(input)", "input", "before", "after", "channels", "tokens"]
    assert list(reader.widths) == names
    torch.testing.assert_close(reader(x.clone())[:, :32], x.flatten(1))
    torch.testing.assert_close(reader(x.clone())[:, 32:64], x.clamp_min(0).flatten(1))
    alone = LayerInputs(Shapes(), x.clone(), layers=["input"], inputs=False)
    assert alone.widths == {"input": 2 * 16}
    assert alone(x.clone()).shape == (3, 32)


class Behind(nn.Module):
    """Its layer `input` gets something else than the input."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.input(x * 2)
        return found


def test_a_layer_may_be_called_input() -> None:
    reader = LayerInputs(Behind(), torch.ones(2, 3))
    assert reader.widths == {"(input)": 3, "input": 3}
    torch.testing.assert_close(reader(torch.ones(1, 3)), torch.tensor([[1.0] * 3 + [2.0] * 3]))
    assert [part.in_features for part in reader.lift(5).parts] == [3, 3]
    torch.testing.assert_close(reader(x=torch.ones(1, 3)), reader(torch.ones(1, 3)))


class Turned(nn.Module):
    """Time first inside: of one sample, the copy that turns it is no copy."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        first = self.b(h)
        found: Tensor = self.c(h.transpose(0, 1).contiguous().transpose(0, 1)) + first[..., :2]
        return found


def test_one_sample_is_read_as_many_are() -> None:
    """What layers share was settled with the example."""
    reader = LayerInputs(Turned(), torch.ones(2, 5, 3))
    assert list(reader.widths) == ["input", "b", "c"]
    torch.testing.assert_close(reader(torch.ones(1, 5, 3)), reader(torch.ones(4, 5, 3))[:1])


def test_maps_are_pooled_whatever_layer_they_enter() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    x = normal(0, 4, 3, 9, 9).float()
    reader = LayerInputs(model, x, layers=["1", "2", "3"], inputs=False, grid=2)
    assert reader.widths == {"1": 24, "2": 24, "3": 24}
    h = model.eval()[0](x)
    torch.testing.assert_close(reader(x)[:, :24], functional.adaptive_avg_pool2d(h, 2).flatten(1))


class Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(functional.avg_pool2d(self.conv(x * 2), 2))
        return found


def test_a_layer_that_sees_several_sizes_is_named() -> None:
    with pytest.raises(ValueError, match="layer 'conv' is called with inputs of different sizes"):
        LayerInputs(Pyramid(), torch.ones(2, 2, 4, 4))
    model = mlp()
    reader = LayerInputs(model, torch.ones(2, 64))
    del model[6]
    with pytest.raises(ValueError, match="layer '6' is not there any more"):
        reader(torch.ones(2, 64))
