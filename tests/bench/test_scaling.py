"""What large models need, counted by hand, and the numbers of the page about it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield
from conceptors.algebra.conceptor import Conceptor
from conceptors.bench.scaling import (
    DENSE_LIMIT,
    LayerShape,
    Needs,
    llama_8b,
    needs,
)
from conceptors.shield.step import factored
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.memory import both
from conceptors.shield.step.strategy import Way
from helpers import Products
from shield.step.common import sites

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_parameters_of_the_large_model() -> None:
    layers = {layer.name: layer for layer in llama_8b()}
    assert needs(llama_8b(), 512, 1).parameters == 8_030_261_248
    blocks = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert sum(layers[n].parameters for n in ("embedding", "head")) == 2 * 128256 * 4096
    named = ("query", "key", "value", "out", "gate", "up", "down")
    assert sum(layers[n].parameters for n in named) == blocks


def test_one_layer_by_hand() -> None:
    found = needs([LayerShape("fc", inputs=100, outputs=30, copies=2)], rank=5, tokens=7, rows=11)
    assert found == Needs(
        parameters=6000,
        training_bytes=16 * 6000,
        correlation_bytes=2 * 8 * 100 * 100,
        shared_correlation_bytes=2 * 8 * 100 * 100,
        claim_bytes=2 * 8 * 100 * 100,
        factor_bytes=2 * 3 * 4 * 100 * 5,
        least_factor_bytes=2 * 4 * 100 * 5,
        note_bytes=2 * 2 * 4 * 30 * 5,
        gradient_bytes=2 * 4 * 30 * 100,
        anchor_bytes=2 * 4 * 30 * 100,
        training_flops=6 * 7 * 6000,
        sharp_flops=2 * 2 * 30 * 100 * 5,
        rough_flops=3 * 2 * 2 * 30 * 100 * 5,
        step_bytes=2 * 4 * (4 * 100 * 5 + 8 * 30 * 100 + 4 * 30 * 5),
        collect_flops=2 * 2 * 11 * 100**2,
    )
    assert found.shield_flops == 2 * 8 * 30 * 100 * 5


def test_steps_alone_without_a_pull() -> None:
    layer = [LayerShape("fc", inputs=100, outputs=30)]
    both, steps = needs(layer, 5, 7), needs(layer, 5, 7, once=True, pulled=False)
    assert steps.shield_flops == 4 * 30 * 100 * 5
    assert steps.sharp_flops == both.sharp_flops
    assert steps.step_bytes == 4 * (2 * 100 * 5 + 3 * 30 * 100 + 2 * 30 * 5)
    assert steps.note_bytes == both.note_bytes / 2 == 4 * 30 * 5
    assert (steps.anchor_bytes, steps.gradient_bytes) == (0.0, both.gradient_bytes)


def test_sharding_divides_notes_and_products_but_not_factors() -> None:
    layer = [LayerShape("fc", inputs=1000, outputs=400)]
    one, part = needs(layer, 50, 64), needs(layer, 50, 64, gpus=4)
    for name in ("note_bytes", "gradient_bytes", "anchor_bytes", "training_bytes"):
        assert getattr(part, name) == getattr(one, name) / 4
    assert one.shield_flops == 8 * 400 * 1000 * 50
    assert part.shield_flops == one.shield_flops / 4
    for name in ("factor_bytes", "correlation_bytes", "claim_bytes", "training_flops"):
        assert getattr(part, name) == getattr(one, name)


def test_layers_with_one_input() -> None:
    trio = [LayerShape(name, 64, 64, copies=2, shares=3) for name in "qkv"]
    found = needs(trio, 4, 8, rows=100)
    assert found.correlation_bytes == 3 * 2 * 8 * 64**2
    assert found.shared_correlation_bytes == pytest.approx(2 * 8 * 64**2)
    assert found.collect_flops == pytest.approx(2 * 2 * 100 * 64**2)  # one product for three


def test_wide_layers_are_sketched() -> None:
    found = needs([LayerShape("down", 10_000, 20)], rank=30, tokens=1, rows=600)
    assert found.correlation_bytes == 8 * 2 * 30 * 10_000
    assert found.claim_bytes == 8 * 30 * 10_000
    assert (found.eigenproblems, found.collect_flops) == (20, 0.0)
    exact = needs([LayerShape("down", 10_000, 20)], 30, 1, rows=600, dense_limit=10_000)
    assert (exact.correlation_bytes, exact.eigenproblems) == (8e8, 0)


def test_there_are_no_more_directions_than_inputs() -> None:
    layer = [LayerShape("fc", 10, 6)]
    assert needs(layer, rank=50, tokens=1) == needs(layer, rank=10, tokens=1)


def test_embeddings_are_noted_whole_and_not_divided() -> None:
    layer = [LayerShape("embedding", 1, 16, copies=1000)]
    for gpus in (1, 8):
        found = needs(layer, 5, 64, gpus=gpus)
        assert (found.note_bytes, found.gradient_bytes) == (2 * 4 * 16_000, 4 * 16_000)
        assert found.anchor_bytes == 4 * 16_000 / gpus
        assert (found.shield_flops, found.training_flops) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rank": 0}, "rank"),
        ({"tokens": 0}, "tokens"),
        ({"gpus": 0}, "gpus"),
        ({"rows": 0}, "rows"),
    ],
)
def test_numbers_that_make_no_sense(change: dict[str, int], name: str) -> None:
    given: dict[str, Any] = {"rank": 1, "tokens": 1, **change}
    with pytest.raises(ValueError, match=name):
        needs([LayerShape("fc", 4, 4)], **given)
    with pytest.raises(ValueError, match="inputs of 'fc'"):
        LayerShape("fc", 0, 4)


# --- what the library does ------------------------------------------------------------------


def test_limits_are_those_of_the_shield() -> None:
    assert inspect.signature(Shield).parameters["dense_limit"].default == DENSE_LIMIT


@pytest.mark.parametrize("pulled", [False, True])
def test_factors_and_notes_are_what_a_step_holds(
    monkeypatch: pytest.MonkeyPatch, pulled: bool
) -> None:
    """As for large layers on a GPU, where U is split in two for tensor cores."""
    monkeypatch.setattr(factored, "pays_to_split", lambda *_: True)
    torch.manual_seed(0)
    d, out, rank = 40, 24, 6
    vectors = torch.linalg.qr(torch.randn(1, d, rank)).Q
    claimed = Conceptor.from_spectrum(vectors, torch.linspace(0.9, 0.2, rank).expand(1, rank))
    stiffness = torch.ones(1) if pulled else None
    free = FreeSpace(claimed, torch.float32, stiffness=stiffness)
    layer = nn.Linear(d, out, bias=False)
    (site,) = sites(layer).values()
    gradient = torch.zeros_like(layer.weight)
    blocks = both(site, site.active(), lambda _: gradient)
    anchor = layer.weight.detach()[None]
    strategy = factored.make_factored(free, *blocks, anchor, torch.ones(()), Way(None))
    strategy.note()

    held: dict[int, Tensor] = {}
    for found in [*vars(strategy).values(), *vars(strategy.directions).values(), free.vectors]:
        for tensor in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(tensor, Tensor) and tensor.numel() > rank:
                held[tensor.untyped_storage().data_ptr()] = tensor
    expected = needs([LayerShape("fc", d, out)], rank, tokens=1, pulled=pulled)
    total = sum(tensor.untyped_storage().nbytes() for tensor in held.values())
    assert total == expected.factor_bytes + expected.note_bytes


@pytest.mark.parametrize("once", [False, True], ids=["AdamW", "SGD with momentum"])
def test_products_and_copies_are_those_of_a_step(once: bool) -> None:
    """The third one: at the first weights are noted, and some are looked at."""
    torch.manual_seed(0)
    layer = nn.Linear(40, 24, bias=False)
    made = (
        torch.optim.SGD(layer.parameters(), 0.1, 0.9) if once else torch.optim.AdamW([layer.weight])
    )
    shield = Shield(layer, 3.0 if once else "auto", warn_at_quota=1.0)
    optimizer = shield.guard(made)
    given: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: given.append(layer.weight.grad))
    shield.remember(torch.randn(30, 6) @ torch.randn(6, 40))
    flops, copied = [], []
    for _ in range(3):
        layer(torch.randn(8, 40)).square().mean().backward()
        with Products() as seen:
            optimizer.step()
        flops.append(seen.flops)
        copied.append(0 if given[-1] is layer.weight.grad else given[-1].nbytes)
    (row,) = shield.explain()
    expected = needs([LayerShape("fc", 40, 24)], row.rank, tokens=1, once=once, pulled=not once)
    assert flops[2] == expected.shield_flops == (4 if once else 8) * 40 * 24 * row.rank
    assert copied == [0 if once else expected.gradient_bytes] * 3  # once: steps alone are projected
    anchors: dict[str, Tensor] = shield.state_dict()["anchors"]
    assert sum(anchor.nbytes for anchor in anchors.values()) == expected.anchor_bytes


# --- the page -------------------------------------------------------------------------------

RATES = {"half": 600e12, "tf32": 300e12, "bandwidth": 4e12}
BOTH: dict[str, Callable[[Needs], float]] = {
    "Adam: weights": lambda n: n.training_bytes / 1e9,
    "notes": lambda n: n.note_bytes / 1e9,
    "copies": lambda n: n.gradient_bytes / 1e9,
    "factors as": lambda n: n.factor_bytes / 1e9,
    "factors, the least": lambda n: n.least_factor_bytes / 1e9,
    "totals while": lambda n: n.correlation_bytes / 1e9,
    "totals, if": lambda n: n.shared_correlation_bytes / 1e9,
    "claims": lambda n: n.claim_bytes / 1e9,
    "weights as": lambda n: n.anchor_bytes / 1e9,
    "training": lambda n: n.training_flops / 1e12,
    "shield ": lambda n: n.shield_flops / 1e12,
    "shield, in": lambda n: (3 * n.sharp_flops + n.rough_flops) / 1e12,
    "time added": lambda n: 100 * n.overhead(**RATES),
}
ONE: dict[str, Callable[[Needs], float]] = {
    "products of rows": lambda n: n.collect_flops / 1e12,
    "sketches": lambda n: n.sketch_flops / 1e12,
    "eigenvalue problems": lambda n: n.eigenproblems,
    "totals summed": lambda n: n.correlation_bytes / 1e9,
}


@pytest.mark.skipif(not PAGE.exists(), reason="the page is in the checkout")
def test_the_page_says_what_the_functions_say() -> None:
    whole, part = (needs(llama_8b(), 512, 16384, gpus=gpus) for gpus in (1, 8))
    text = PAGE.read_text(encoding="utf-8")
    rows = [line.strip("| ") + " " for line in text.splitlines() if line.startswith("| ")]
    found = 0
    for start, value in [*BOTH.items(), *ONE.items()]:
        (row,) = (row for row in rows if row.startswith(start))
        cells = [float(cell) for cell in row.split("|")[1:]]
        expected = [value(whole), value(part)][: len(cells)]
        assert len(cells) == (2 if start in BOTH else 1), row
        assert cells == [round(number, 1) for number in expected], row
        found += 1
    heads = 3
    assert len(rows) == found + heads  # no row that is not checked


@pytest.mark.skipif(not PAGE.exists(), reason="the page is in the checkout")
def test_numbers_in_the_text_of_the_page() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    layers = {layer.name: layer for layer in llama_8b()}
    whole = needs(llama_8b(), 512, 16384)
    saved = whole.correlation_bytes - whole.shared_correlation_bytes
    assert f"save {saved / 1e9:.0f} GB" in text
    assert f"{8 * whole.claim_bytes / 1e9:.0f} GB on a machine with eight" in text
    assert f"{4 * layers['embedding'].parameters / 1e9:.1f} GB each time" in text
    wide = 8 * 14336**2 / 1e9
    assert f"{wide:.1f} GB a layer, {32 * wide:.0f} GB in all" in text
    part = needs(llama_8b(), 512, 16384, gpus=8)
    held = part.training_bytes + part.note_bytes + part.gradient_bytes
    held += part.factor_bytes + part.anchor_bytes
    assert f"{(held + 2 * part.correlation_bytes) / 1e9:.0f} GB" in text
    tokens = 4 * layers["embedding"].parameters
    assert f"{tokens / 1e9:.1f} GB are a copy of the embedding" in text
    steps = needs(llama_8b(), 512, 16384, once=True, pulled=False)
    assert f"less: {100 * steps.overhead(**RATES):.1f} %" in text
    matrices = [layer for layer in llama_8b() if layer.is_matrix]
    forward = 2 * 16 * 16384 * sum(layer.parameters for layer in matrices)
    assert f"{round(forward / 1e12, -2):,.0f} · 10¹²" in text
    totals = sum(layer.copies for layer in matrices if layer.inputs == 4096)
    assert f"Then {totals} totals" in text
    assert 250e12 < totals * 70 * 2 * 4096**2 * 640 < 300e12
