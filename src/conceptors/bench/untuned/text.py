"""CLINC150, ten domains one after the other, with a small pretrained sentence encoder (MiniLM)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from conceptors.bench.row import UnfitError
from conceptors.bench.untuned.sequence import Lesson, Sequence
from conceptors.experiments.scenarios.data import DataUnavailableError
from conceptors.experiments.scenarios.data.sentences import (
    PARTS,
    encoder,
    encoder_folder,
    mean_state,
    sentences,
    token_ids,
)


@cache
def tokens() -> tuple[list[Lesson], int]:
    """One lesson a domain, and the number of intents. Rows are token ids `[n, 32]`, 0 for none."""
    try:
        folder, data = encoder_folder(), sentences()  # what cannot be fetched first
    except DataUnavailableError as error:
        raise UnfitError(str(error)) from error
    read = {
        part: (token_ids(texts, folder), torch.tensor(labels))
        for part, (texts, labels) in data.parts.items()
    }
    lessons = []
    for labels in data.domains.values():
        classes = torch.tensor(sorted(labels))
        parts = []
        for part in PARTS:
            ids, y = read[part]
            own = torch.isin(y, classes)
            parts.append((ids[own], y[own]))
        lessons.append(Lesson(*parts, outputs=classes))
    return lessons, sum(map(len, data.domains.values()))


class Encoder(nn.Module):
    """Token ids `[n, t]` to scores of all intents: the mean of all vectors, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = encoder(encoder_folder())
        self.head = nn.Linear(self.body.config.hidden_size, classes)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids != 0).long()
        states = self.body(input_ids=ids, attention_mask=there).last_hidden_state
        found: Tensor = self.head(mean_state(states, ids))
        return found


def clinc(name: str, target: float, heads: bool) -> Sequence:
    """With `heads`, the domain is known at test time."""

    def lessons() -> list[Lesson]:
        found, _ = tokens()
        return found if heads else [replace(lesson, outputs=None) for lesson in found]

    return Sequence(name, target, lessons, lambda: Encoder(tokens()[1]), epochs=5, pretrained=True)
