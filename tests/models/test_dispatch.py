"""Rules find their layers in subclasses, compiled and checkpointed models, and under adapters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.measure import HARD, play, standing
from models.senses import BY_NAME

pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def check(name: str, model: Any, call: Any = None) -> None:
    """Old outputs stay and the new task is learned, where `call` is what is trained."""
    outcome = play(BY_NAME[name], HARD, model, call)
    assert outcome.drift <= 1e-3
    assert outcome.last_loss < 0.6 * outcome.first_loss


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of the compiler itself
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("name", ["GPT-2", "Mixtral", "ConvNeXt", "wav2vec2"])
def test_compiled_models(name: str) -> None:
    model = BY_NAME[name].build()
    check(name, model, torch.compile(model, backend="eager"))


@pytest.mark.parametrize("name", ["Llama", "Mixtral"])  # which have no dropout
def test_gradient_checkpointing(name: str) -> None:
    model = BY_NAME[name].build().train()
    model.gradient_checkpointing_enable()
    check(name, model)


def test_subclasses() -> None:
    """Also with a forward of their own around that of the parent."""
    model = BY_NAME["Llama"].build()

    def half(layer: Any) -> type[Any]:
        def forward(self: Any, hidden_states: Any) -> Any:
            return parent.forward(self, hidden_states) / 2

        parent = type(layer)
        return type("Half", (parent,), {"forward": forward})

    for layer in list(model.modules()):
        if type(layer).__name__ == "LlamaRMSNorm":
            layer.__class__ = half(layer)
    assert not standing(model).refused
    check("Llama", model)
