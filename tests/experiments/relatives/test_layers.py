"""Layers as matrices: what they compute is [W | b] times the rows that are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors.experiments.methods.relatives.layers import (
    MatrixLayer,
    drawn_inputs,
    matrix_layers,
    other_parameters,
    rows,
    watching,
)
from conceptors.experiments.networks import AlexNet, StackedMLP
from experiments.learners import learner
from helpers import normal


def mlp(seeds: list[int], *, bias: bool = True) -> StackedMLP:
    return StackedMLP([6, 5, 4], "relu", "truncated", 0.5, seeds, bias)


def grouped() -> nn.Module:
    """Of a layer that is not stacked, groups take the place of seeds."""
    return nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, padding=1), nn.Flatten(), nn.Linear(96, 3))


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "stacked": (lambda: mlp([0, 1, 2]), (3, 7, 6)),
    "no biases": (lambda: mlp([0, 1, 2], bias=False), (3, 7, 6)),
    "AlexNet": (lambda: AlexNet(10, [0]), (1, 3, 3, 32, 32)),
    "groups": (grouped, (5, 4, 4, 4)),
}


def outputs(model: nn.Module, layers: list[MatrixLayer], x: Tensor) -> dict[str, Tensor]:
    """What came out of every layer."""
    found = {}
    model.eval()
    with torch.no_grad(), watching(layers, lambda own, call: found.update({own.name: call.output})):
        model(x)
    return found


@pytest.mark.parametrize("case", list(CASES))
def test_a_layer_is_its_matrix_times_its_rows(case: str) -> None:
    make, shape = CASES[case]
    model, x = make(), normal(0, *shape, dtype=torch.float32)
    layers = matrix_layers(model)
    told = rows(model, layers, [x])
    came = outputs(model, layers, x)
    for own in layers:
        assert own.matrix().shape == own.shape
        assert told[own.name].shape[::2] == own.shape[::2]
        product = told[own.name] @ own.matrix().mT  # [g, n, out]
        out = came[own.name]
        if out.ndim == 4:  # [n, g * out, h, w]
            out = out.unflatten(1, own.shape[:2]).permute(1, 0, 3, 4, 2).flatten(1, 3)
        elif out.ndim == 5:  # [g, n, out, h, w]
            out = out.movedim(2, 4)
        torch.testing.assert_close(product, out.reshape(product.shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", list(CASES))
def test_matrices_and_gradients_are_written_in_place(case: str) -> None:
    make, shape = CASES[case]
    model = make()
    layers = matrix_layers(model)
    assert layers[0].gradient() is None
    with pytest.raises(ValueError, match="has no gradients to write to: call backward first"):
        layers[0].set_gradient(layers[0].matrix())
    model(normal(0, *shape, dtype=torch.float32)).square().sum().backward()
    for own in layers:
        memory = [p.grad for p in own.parameters]
        before, after = own.gradient(), normal(1, *own.shape, dtype=torch.float32)
        assert before is not None
        own.set_gradient(after)
        torch.testing.assert_close(own.gradient(), after)
        assert all(p.grad is m for p, m in zip(own.parameters, memory))
        own.set_matrix(after)
        torch.testing.assert_close(own.matrix(), after)


def test_heads_and_normalisation_are_told_apart() -> None:
    model = AlexNet(10, [0])
    names = [own.name for own in matrix_layers(model)]
    assert names == ["conv1", "conv2", "conv3", "fc1", "fc2", "head"]
    assert [own.name for own in matrix_layers(model, head=False)] == names[:-1]
    left = other_parameters(model, matrix_layers(model))
    assert {id(p) for p in left} == {id(p) for norm in model.norms for p in norm.parameters()}
    with pytest.raises(ValueError, match="ReLU has no layer with a matrix that is known"):
        matrix_layers(nn.ReLU())


def test_some_rows_of_many() -> None:
    model, x = AlexNet(10, [0]), normal(0, 1, 6, 3, 32, 32, dtype=torch.float32)
    layers = matrix_layers(model)
    some = rows(model, layers, [x, x + 1], most=100)
    again = rows(model, layers, [x, x + 1], most=100)
    every = rows(model, layers, [x, x + 1])
    for name in some:
        assert some[name].shape[1] == min(100, every[name].shape[1])
        assert torch.equal(some[name], again[name])
    distance = torch.cdist(some["conv1"][0], every["conv1"][0]).amin(1)
    assert float(distance.max()) < 1e-2
    assert model.training
    assert not model.conv1._forward_hooks


def test_seeds_draw_for_themselves() -> None:
    together, alone = learner("sgd", [0, 3]), learner("sgd", [3])
    both, own = drawn_inputs(together, 1, 20), drawn_inputs(alone, 1, 20)
    assert both.shape == (2, 20, 6)
    assert torch.equal(both[1:], own)
    assert not torch.equal(both[0], both[1])
    assert drawn_inputs(alone, 1, 0).shape == (1, 60, 6)  # all
    found, single = (
        rows(each.model, matrix_layers(each.model), [x], most=10)
        for each, x in ((together, both), (alone, own))
    )
    for name in found:
        torch.testing.assert_close(found[name][1:], single[name])


def test_a_network_without_biases_has_the_same_weights() -> None:
    plain, without = mlp([0, 1]), mlp([0, 1], bias=False)
    assert [name for name, _ in without.named_parameters()] == [
        "layers.0.weight",
        "layers.1.weight",
    ]
    drawn = dict(plain.named_parameters())
    for name, weight in without.named_parameters():
        assert torch.equal(weight, drawn[name])
    assert learner("sgd", [0], bias="no").model.layers[0].bias is None
