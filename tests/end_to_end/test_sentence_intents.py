"""The example of sentences and their intents, with a bag of words in place of the encoder."""

from __future__ import annotations

import re
import runpy
import zlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

EXAMPLE = Path(__file__).parents[2] / "examples" / "sentence_intents.py"


class BagOfWords(nn.Module):
    """Sentences to the mean of fixed random vectors of their words `[n, width]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(5000, width)

    def forward(self, sentences: list[str]) -> Tensor:
        words = [[zlib.crc32(word.encode()) % 5000 for word in s.split()] for s in sentences]
        starts = torch.tensor([0, *(len(row) for row in words[:-1])]).cumsum(0)
        vectors: Tensor = self.words(torch.tensor([w for row in words for w in row]), starts)
        return vectors


@pytest.mark.skipif(not EXAMPLE.is_file(), reason="the examples are in the checkout")
def test_intents_are_learned_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    example = runpy.run_path(str(EXAMPLE))
    assert {len(texts) for texts in example["SENTENCES"].values()} == {8}
    example["main"](BagOfWords(200), 200, 500, ["where is my parcel", "play some jazz"])
    text = capsys.readouterr().out
    accuracies = [float(value) for value in re.findall(r"([\d.]+) % correct", text)]
    assert len(accuracies) == 6
    assert min(accuracies) > 60  # guessing: 17
    assert "'where is my parcel': track_order" in text
    assert "'play some jazz': play_music" in text
