"""Padded batches of language models claim what their texts claim one by one."""

from __future__ import annotations

import pytest
import torch

from conceptors import Shield
from models.family import Batch
from models.senses import BY_NAME

LENGTHS = (3, 7, 5, 12)
TOLERANCE = {"Mixtral": 1e-6, "Llama 4": 1e-6}  # experts and routers compute in float32
NAMES = ["GPT-2", "Llama", "Qwen3", "OPT", "BERT", "ModernBERT", *TOLERANCE]


def claimed(name: str, batches: list[Batch]) -> dict[str, torch.Tensor]:
    model = BY_NAME[name].build()
    shield = Shield(model if name == "Mixtral" else model.double(), 9.0).remember(batches)
    return {layer: conceptor.matrix() for layer, conceptor in shield.conceptors().items()}


@pytest.mark.parametrize("name", NAMES)
def test_padding_is_not_remembered(name: str) -> None:
    pytest.importorskip("transformers")
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(3, 40, (length,), generator=draw) for length in LENGTHS]
    alone = [{"input_ids": text[None]} for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    together = claimed(name, [{"input_ids": ids, "attention_mask": mask}])
    for layer, conceptor in claimed(name, alone).items():
        tolerance = TOLERANCE.get(name, 1e-10)
        torch.testing.assert_close(together[layer], conceptor, rtol=0, atol=tolerance)
