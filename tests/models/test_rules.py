"""Layers of transformers against what enters their weights, worked out by hand."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layers.cases import Draw, Inputs
from layers.probe import captured, in_some_order, joined, moments, sites_of
from models.registry import BY_NAME

pytest.importorskip("transformers")


def from_library(family: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)


def only_matrix(layer: nn.Module) -> Tensor:
    (site,) = sites_of(layer).values()
    return site.matrix(site.parameters)


def part_of(name: str, kind: str) -> Any:
    """The first layer of this class in a family's model."""
    return next(m for m in BY_NAME[name].build().modules() if type(m).__name__ == kind).double()


# --- norms and products ------------------------------------------------------------------

NORMS = {
    "LlamaRMSNorm": "llama",
    "Qwen3RMSNorm": "qwen3",
    "MixtralRMSNorm": "mixtral",
    "T5LayerNorm": "t5",
    "Olmo2RMSNorm": "olmo2",
    "GemmaRMSNorm": "gemma",
    "Gemma3RMSNorm": "gemma3",
}


@pytest.mark.parametrize("name", NORMS)
def test_every_rms_norm_is_known_by_what_it_does(name: str) -> None:
    layer = from_library(NORMS[name], name)(8)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(8))
    x = Draw(0, torch.float32).x(3, 8)
    normalised = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    rows = joined(captured(layer, Inputs((x,), {}))[""])
    torch.testing.assert_close(rows, normalised.reshape(-1, 8).mT[..., None])
    products = (rows @ only_matrix(layer).mT)[..., 0].mT.reshape(x.shape)
    offset = normalised if "Gemma" in name else 0
    torch.testing.assert_close(products + offset, layer(x))


def test_a_gate_is_a_factor_of_what_enters() -> None:
    layer = from_library("qwen3_next", "Qwen3NextRMSNormGated")(8)
    x, gate = Draw(0, torch.float32).normal(2, 6, 8)
    normalised = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    rows = joined(captured(layer, Inputs((x, gate), {}))[""])
    wanted = normalised * nn.functional.silu(gate)
    torch.testing.assert_close(rows, wanted.mT[..., None])


def test_conv1d_is_a_transposed_linear_layer() -> None:
    layer = part_of("GPT-2", "Conv1D")
    x = Draw(0).x(3, layer.nx)
    rows = joined(captured(layer, Inputs((x,), {}))[""])
    torch.testing.assert_close(rows, x.reshape(1, -1, layer.nx))
    with_one = torch.cat([rows, torch.ones_like(rows[..., :1])], -1)
    products = with_one @ only_matrix(layer).mT
    torch.testing.assert_close(products, layer(x).reshape(1, -1, layer.nf))


# --- tokens and positions ----------------------------------------------------------------


def met(layer: nn.Module, *args: Any, **kwargs: Any) -> list[int]:
    """Which rows of an embedding a call meets."""
    (found,) = moments(layer, [Inputs(args, kwargs)]).values()
    return [i for i, share in enumerate(found.correlation().flatten().tolist()) if share]


def test_positions_are_taken_where_the_weight_is() -> None:
    bart = part_of("BART", "BartLearnedPositionalEmbedding")
    tokens = torch.full((2, 5), 50)  # which are not what it looks up
    assert met(bart, tokens) == [2, 3, 4, 5, 6]
    assert met(bart, tokens, past_key_values_length=3) == [5, 6, 7, 8, 9]
    opt = part_of("OPT", "OPTLearnedPositionalEmbedding")
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0]])
    assert met(opt, mask) == [1, 2, 3, 4]  # 1 is that of hidden places
    assert met(opt, mask, position_ids=torch.tensor([[4, 9]])) == [6, 11]
    assert met(part_of("BART", "BartScaledWordEmbedding"), torch.tensor([[7, 9]])) == [7, 9]


def test_relative_positions_are_buckets() -> None:
    """Near keys have a bucket each; five tokens see only these."""
    model, batch = BY_NAME["T5"].build(), BY_NAME["T5"].old()
    found = moments(model, [batch], feed=lambda model, batch: model(**batch))
    shares = {n: m.correlation() for n, m in found.items() if "relative_attention_bias" in n}
    both_ways, backwards = (
        [i for i, share in enumerate(s.flatten().tolist()) if share] for s in shares.values()
    )
    assert both_ways == [0, 1, 2, 3, 4, 17, 18, 19, 20]  # half of 32 for keys that come later
    assert backwards == [0, 1, 2, 3, 4]


def test_a_tied_weight_is_held_from_both_sides() -> None:
    """As an embedding and as a head; T5 has one for encoder, decoder and head."""
    model = BY_NAME["T5"].build()
    sites = [s for s in sites_of(model).values() if s.weight is model.shared.weight]
    assert sorted(len(site.sources) for site in sites) == [1, 3]
    assert {site.block.layout for site in sites} == {"tokens", "linear"}


# --- experts -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["eager", "batched_mm", "grouped_mm"])
def test_experts_get_the_rows_that_are_sent_to_them(way: str) -> None:
    model = BY_NAME["Mixtral"].build()
    model.set_experts_implementation(way)
    block = model.model.layers[0].mlp
    x = Draw(0, torch.float32).x(3, 32)
    _, shares, chosen = block.gate(x)
    found = captured(block.experts, Inputs((x.reshape(-1, 32), chosen, shares), {}))
    for i in range(4):
        up, down = block.experts.gate_up_proj[i], block.experts.down_proj[i]
        mine = [row for row, to in zip(x.reshape(-1, 32), chosen.tolist()) if i in to]
        rows = torch.stack([*mine, torch.zeros(32)])[None, :-1]
        gate, value = (rows @ up.mT).chunk(2, -1)
        inner = torch.nn.functional.silu(gate) * value
        for name, wanted, weight in (("gate_up_proj", rows, up), ("down_proj", inner, down)):
            seen = joined(found[f"{name}.{i}"])
            torch.testing.assert_close(in_some_order(seen), in_some_order(wanted))
            site = sites_of(block.experts)[f"{name}.{i}"]
            torch.testing.assert_close(site.matrix(site.parameters)[0], weight)


def test_a_router_gives_what_it_is_given() -> None:
    router = part_of("Mixtral", "MixtralTopKRouter")
    x = Draw(0).x(3, 32)
    rows = joined(captured(router, Inputs((x,), {}))[""])
    torch.testing.assert_close((rows @ only_matrix(router).mT)[0], router(x)[0])


def test_other_formulas_are_refused() -> None:
    experts = part_of("Mixtral", "MixtralExperts")
    experts.act_fn, experts._apply_gate = nn.Identity(), lambda found: found.chunk(2, -1)[0]
    x, chosen = Draw(0).normal(6, 32), torch.zeros(6, 1, dtype=torch.long)
    experts.config._experts_implementation = "eager"  # which has its gate written out
    with pytest.raises(ValueError, match="computes something else than down"):
        moments(experts, [Inputs((x, chosen, torch.ones(6, 1).double()), {})])
