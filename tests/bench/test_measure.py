"""The performance suite measures what it says: times, memory, floors, drift; and its models."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from conceptors import Shield
from conceptors.bench import (
    data,
    floor,
    models,
    recipes,
)
from conceptors.bench.ceilings import Ceilings, measure_ceilings
from conceptors.bench.measure import Timing, peak_memory, side_by_side
from conceptors.bench.protection import drift, leak, outputs
from conceptors.bench.remember import collection_time

CPU = torch.device("cpu")


# --- measuring ---------------------------------------------------------------------------


def test_all_are_called_equally_often_and_in_turn() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    found = side_by_side(calls, CPU, rounds=4, block=0.0, warm=2)
    assert order == [*"aabb", *"ab", *"ab", *"ba", *"ab", *"ba"]
    assert found["a"].calls == found["b"].calls == order.count("a")


def test_ratio_and_spread() -> None:
    ours, plain = Timing((2.0, 4.0, 6.0), 3), Timing((1.0, 2.0, 2.0), 3)
    assert ours.median == 4.0
    assert plain.quartiles == (1.5, 2.0)
    assert ours.against(plain) == (2.0, 2.0, 2.5)


def test_peak_memory_counts_what_was_built() -> None:
    def build() -> Any:
        held = torch.zeros(1000)
        return lambda: (held + 1) + 2  # two more at once

    assert 3 * 4000 <= peak_memory(build, CPU) < 3.1 * 4000


def test_the_collection_is_timed_and_leaves_no_trace() -> None:
    recipe = recipes.resnet18("tiny", CPU)
    model = recipe.build()
    before = copy.deepcopy(model.state_dict())
    assert collection_time(recipe, model, [recipe.batch(0)]) > 0
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_ceilings_are_measured_once() -> None:
    found = measure_ceilings(CPU, "tiny")
    assert found is measure_ceilings(CPU, "tiny")
    assert min(found.bandwidth, found.float32, found.float64) > 0
    assert replace(found, float32=1.0, tf32=6.0).exact == 2.0
    assert found.exact == found.float32


# --- the floor ---------------------------------------------------------------------------


def test_floor_of_a_linear_layer() -> None:
    (block,) = floor.blocks(nn.Linear(9, 5))
    assert (block.groups, block.out, block.d) == (1, 5, 10)
    thin = floor.of_weights(block, 2)
    assert thin == floor.Work(flops=4 * 5 * 10 * 2, bytes=4 * (2 * 50 + 20))
    dense = floor.of_weights(block, 8)
    assert dense == floor.Work(flops=2 * 5 * 100, bytes=4 * (2 * 50 + 100))
    rows = floor.of_rows(block, 2, rows=3)
    assert rows == floor.Work(flops=4 * 3 * 10 * 2, bytes=4 * (2 * 30 + 20))
    slow = Ceilings(bandwidth=1e9, float32=1e3, float64=1.0)
    fast = Ceilings(bandwidth=1e3, float32=1e9, float64=1.0)
    name, model = {"Linear": 2}, nn.Linear(9, 5)
    assert floor.least_seconds(model, name, slow) == pytest.approx(0.4)
    assert floor.least_seconds(model, name, fast) == pytest.approx(0.48)
    assert floor.least_seconds(model, name, slow, rows=3) == pytest.approx(0.24)
    assert floor.least_seconds(model, {}, slow) == 0


def test_floor_of_other_layers() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Embedding(7, 4), nn.LayerNorm(5), nn.GELU()
    )
    shapes = {b.name: (b.groups, b.out, b.d) for b in floor.blocks(model)}
    assert shapes == {"0": (1, 8, 28), "1": (8, 1, 2), "2": (7, 4, 1), "3": (5, 1, 2)}


def test_shared_weights_are_read_once() -> None:
    blocks = {b.name: b for b in floor.blocks(models.GPT2(20, 4, 8, 1, 2))}
    assert blocks["head"].shared
    assert not blocks["tokens"].shared
    assert floor.of_weights(blocks["head"], 1).bytes == 4 * 8


def test_blocks_have_the_names_and_sizes_of_the_shields_sites() -> None:
    for model in (models.GPT2(20, 4, 8, 1, 2), models.ResNet18(2), models.ViT(16, 8, 8, 1, 2)):
        shield = Shield(model)
        assert {b.name for b in floor.blocks(model)} == set(shield.quota())


def test_ranks_are_what_is_protected() -> None:
    x = torch.randn(50, 3) @ torch.randn(3, 10)
    for rank, wanted in ((None, 3), (2, 2), (0.1, 1)):
        shield = Shield(nn.Linear(10, 4, bias=False), rank=rank).remember(x)
        assert floor.ranks(shield) == {"Linear": wanted}
        shield.detach()


# --- protection --------------------------------------------------------------------------


def test_drift_and_leak() -> None:
    model = nn.Linear(6, 4, bias=False)
    first, plain = copy.deepcopy(model), copy.deepcopy(model)
    x = torch.randn(50, 2) @ torch.randn(2, 6)
    shield = Shield(model, aperture=1e4, hard=True).remember(x)
    before = outputs(model, x)
    assert leak(shield, first, plain) is None
    assert drift(before, outputs(model, x)) == 0
    vectors, values, _ = shield.conceptors()["Linear"].spectrum
    used, free = (vectors[0][:, [int(i)]].mT.float() for i in (values.argmax(), values.argmin()))
    with torch.no_grad():
        plain.weight += 1
        model.weight += torch.randn(4, 1) @ free
    assert drift(before, outputs(model, x)) < 1e-5
    found = leak(shield, first, plain)
    assert found is not None
    assert found < 1e-5
    with torch.no_grad():
        model.weight += torch.randn(4, 1) @ used
    assert drift(before, outputs(model, x)) > 0.01
    found = leak(shield, first, plain)
    assert found is not None
    assert found > 0.01


# --- models and data ---------------------------------------------------------------------


def test_sizes_of_the_models() -> None:
    with torch.device("meta"):
        count = {
            kind.__name__: sum(p.numel() for p in kind().parameters())
            for kind in (models.GPT2, models.ViT, models.ResNet18)
        }
    assert count["GPT2"] == 124_439_808  # as published
    assert count["ViT"] == 22_050_664  # likewise
    assert count["ResNet18"] == 11_220_132  # with 100 classes


def test_outputs_of_the_models() -> None:
    gpt = models.GPT2(20, 6, 8, 2, 2).eval()
    text = torch.randint(20, (2, 6))
    out = gpt(text)
    assert out.shape == (2, 6, 20)
    changed = text.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 20
    torch.testing.assert_close(gpt(changed)[:, :4], out[:, :4])  # no look ahead
    assert not torch.allclose(gpt(changed)[:, 4:], out[:, 4:])
    assert gpt.head.weight is gpt.tokens.weight
    assert models.ResNet18(2, 5)(torch.randn(3, 3, 32, 32)).shape == (3, 5)
    assert models.ViT(16, 8, 8, 1, 2, 5)(torch.randn(3, 3, 16, 16)).shape == (3, 5)


def test_made_up_data() -> None:
    x = data.images(50, 1, 16, seed=0)
    power = torch.fft.rfft2(x).abs().square().mean((0, 1))
    assert power[0, 1] > 10 * power[0, 8]  # coarse structure is strongest
    drawn = data.tokens(100, 20, 50, task=0, seed=0)
    counts = drawn.flatten().bincount(minlength=50).sort(descending=True).values
    assert counts[0] > 5 * counts[20]
    many, motif = data.pictures(50, 1, 16, task=0, seed=0)
    assert many.shape == (50, 1, 16, 16)
    same = many[motif == motif[0]].flatten(1)
    assert bool((torch.corrcoef(same)[0, 1:] > 0.2).all())
    where, images, labels = data.digits("tiny")
    assert where == "made-up digits"
    assert images.shape == (len(labels), 784)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    assert torch.equal(x, data.images(50, 1, 16, seed=0))
