"""Made-up sentences of four intents in two domains, in place of CLINC150, and a tiny encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors.bench.pretrained import stream
from conceptors.experiments.scenarios.data.sentences import Sentences

WORDS = 30  # 0 is none


class TinyEncoder(nn.Module):
    """Words, and one layer on top of them; called as transformers' encoders are."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=16)
        self.words = nn.Embedding(WORDS, 16)
        self.layer = nn.Linear(16, 16)

    def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
        first = self.words(input_ids)
        last = torch.tanh(self.layer(first))
        return SimpleNamespace(hidden_states=(first, last), last_hidden_state=last)


def use_made_up(monkeypatch: pytest.MonkeyPatch, encoder: Callable[[], Any]) -> None:
    """Each intent has five words of its own, and five that it shares with its neighbour."""
    draw = torch.Generator().manual_seed(0)

    def part(count: int) -> tuple[list[str], list[int]]:
        labels = [k % 4 for k in range(count)]
        words = torch.randint(10, (count, 5), generator=draw)
        lengths = torch.randint(3, 6, (count,), generator=draw)
        texts = [
            " ".join(str(1 + 5 * label + int(w)) for w in row[:length])
            for label, row, length in zip(labels, words, lengths)
        ]
        return texts, labels

    found = Sentences(
        {"train": part(400), "val": part(120), "test": part(120)},
        {"one": [0, 1], "two": [2, 3]},
        ["a", "b", "c", "d"],
    )
    made = encoder()
    monkeypatch.setattr(stream, "sentences", lambda: found)
    monkeypatch.setattr(stream, "encoder_folder", Path)
    monkeypatch.setattr(stream, "encoder", lambda _: made)
    monkeypatch.setattr(stream, "token_ids", _ids)
    forget()


def forget() -> None:
    """What was read before, also when it was not made up."""
    stream.read.cache_clear()
    stream._pretrained.cache_clear()


def _ids(texts: list[str], _folder: Path) -> Tensor:
    rows = [[int(word) for word in text.split()] for text in texts]
    return torch.tensor([row + [0] * (8 - len(row)) for row in rows])
