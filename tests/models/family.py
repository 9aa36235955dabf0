"""An entry of the table of model families: a tiny model with random weights, and two tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]  # keyword arguments of the model, labels among them

VOCABULARY = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TRANSLATOR: dict[str, Any] = {"d_model": 32}  # an encoder and a decoder
for side in ("encoder", "decoder"):
    TRANSLATOR |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 48}


@dataclass(frozen=True)
class Family:
    """A model that takes batches as keyword arguments and gives `.loss` and `.logits`.

    `old` must leave room: fewer rows than layers have inputs. What needs transformers is imported
    when `make` is called.
    """

    name: str
    make: Callable[[], nn.Module]
    old: Callable[[], Batch]
    new: Callable[[], Batch]
    refused: str = ""  # why `Shield(model)` refuses it, unless unsupported="freeze"

    def build(self) -> Any:
        """The model in evaluation mode, so that dropout hides no drift; the same at every call."""
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            return self.make().eval()


def model(kind: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Makes a model of transformers with random weights."""

    def make() -> nn.Module:
        import transformers

        return getattr(transformers, kind)(getattr(transformers, config)(**settings))  # type: ignore[no-any-return]

    return make
