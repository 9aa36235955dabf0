"""What enters the unusual layers of vision and audio models, against what is worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from conceptors import Shield
from layers.probe import moments
from models.family import Batch
from models.measure import HARD, RATE, drift, learn, logits
from models.registry import BY_NAME

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("fresh_compiler")


def looked_into(name: str) -> tuple[Any, Batch, dict[str, Any]]:
    """A model, its old task, and the second moments of what entered its blocks."""
    family = BY_NAME[name]
    model, old = family.build().double(), family.old()
    old = {key: x.double() if x.is_floating_point() else x for key, x in old.items()}
    return model, old, moments(model, [old], feed=lambda made, batch: made(**batch))


def passed(model: Any, layer: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """What a layer was given and what it gave."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = layer.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    with torch.no_grad():
        model(**batch)
    handle.remove()
    return seen[0]


def per_channel(x: Tensor) -> Tensor:
    """Mean squares of `[..., d]`."""
    return x.flatten(0, -2).square().mean(0)


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("ViT", {"vit.embeddings.cls_token", "vit.embeddings.position_embeddings"}),
        (
            "DINOv2",
            {f"dinov2.embeddings.{x}" for x in ("cls_token", "position_embeddings", "mask_token")},
        ),
        ("wav2vec2", {"wav2vec2.masked_spec_embed", "wav2vec2.encoder.pos_conv_embed.conv.bias"}),
    ],
)
def test_tokens_and_positions_are_constants(name: str, held: set[str]) -> None:
    _, _, found = looked_into(name)
    assert {name for name, own in found.items() if getattr(own, "is_constant", False)} == held


def test_layer_scale_of_dinov2() -> None:
    model, old, found = looked_into("DINOv2")
    x, _ = passed(model, model.dinov2.encoder.layer[1].layer_scale1, old)
    (name,) = (name for name in found if "layer.1.layer_scale1" in name)
    torch.testing.assert_close(found[name].correlation()[:, 0, 0], per_channel(x))


def test_layer_scale_of_convnext() -> None:
    model, old, found = looked_into("ConvNeXt")
    _, y = passed(model, model.convnext.encoder.stages[1].layers[0].pwconv2, old)
    name = "convnext.encoder.stages.1.layers.0.layer_scale_parameter"
    torch.testing.assert_close(found[name].correlation()[:, 0, 0], per_channel(y))


def test_norms_with_channels_first() -> None:
    model, old, found = looked_into("ConvNeXt")
    layer = model.convnext.embeddings.layernorm
    assert layer.data_format == "channels_first"
    x, _ = passed(model, layer, old)
    last = x.movedim(1, -1)
    mean, var = last.mean(-1, keepdim=True), last.var(-1, unbiased=False, keepdim=True)
    rows = ((last - mean) / (var + layer.eps).sqrt()).flatten(0, -2).mT[..., None]  # [d, n, 1]
    wide = torch.cat([rows, torch.ones_like(rows)], -1)
    wanted = wide.mT @ wide / wide.shape[1]
    torch.testing.assert_close(found["convnext.embeddings.layernorm"].correlation(), wanted)


def test_positions_of_whisper() -> None:
    model, old, found = looked_into("Whisper")
    table, length = model.model.decoder.embed_positions, old["decoder_input_ids"].shape[1]
    wanted = (torch.arange(table.num_embeddings) < length).double()
    own = found["model.decoder.embed_positions"]
    assert torch.equal(own.correlation()[:, 0, 0], wanted)


def test_positional_convolution_of_wav2vec2() -> None:
    model, old, found = looked_into("wav2vec2")
    layer = model.wav2vec2.encoder.pos_conv_embed.conv
    x, _ = passed(model, layer, old)
    (taps,), (reach,), groups = layer.kernel_size, layer.padding, layer.groups
    steps = layer.parametrizations.weight
    ratio = (steps.original0 / steps.original1.norm(dim=(0, 1), keepdim=True)).flatten()
    wide = functional.pad(x, (reach, reach))
    places = range(wide.shape[-1] - taps + 1)
    windows = torch.stack([wide[..., i : i + taps] * ratio for i in places], 1)  # [n, i, c, k]
    rows = windows.unflatten(2, (groups, -1)).flatten(0, 1).movedim(1, 0).flatten(2)
    wanted = rows.mT @ rows / rows.shape[1]
    own = found["wav2vec2.encoder.pos_conv_embed.conv"]
    torch.testing.assert_close(own.correlation(), wanted)


# --- dispatch ----------------------------------------------------------------------------


def holds(name: str, model: Any, call: Any = None) -> None:
    """Old outputs stay and the new task is learned, where `call` is what is trained."""
    call = model if call is None else call
    old, new = BY_NAME[name].old(), BY_NAME[name].new()
    shield = Shield(call, **HARD)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=RATE))
    training = model.training
    shield.remember([old])
    before = logits(model.eval(), old)
    model.train(training)
    losses = learn(call, optimizer, new, steps=10)
    assert drift(logits(model.eval(), old), before) <= 1e-3
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("name", ["ViT", "ConvNeXt", "wav2vec2"])
def test_compiled_models(name: str) -> None:
    model = BY_NAME[name].build()
    holds(name, model, torch.compile(model, backend="eager"))


@pytest.mark.parametrize("name", ["ViT", "DINOv2", "Whisper"])
def test_gradient_checkpointing(name: str) -> None:
    model = BY_NAME[name].build()
    model.config.dropout = model.config.activation_dropout = 0.0
    for part in model.modules():
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
    model.gradient_checkpointing_enable()
    holds(name, model.train())


def test_subclasses() -> None:
    model = BY_NAME["DINOv2"].build()
    for part in list(model.modules()):
        if type(part).__name__ in ("Dinov2Embeddings", "Dinov2LayerScale"):
            part.__class__ = type("Own", (type(part),), {})
    holds("DINOv2", model)
