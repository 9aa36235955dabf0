"""The benchmark of an encoder with a readout after it, on made-up sentences and a tiny encoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from conceptors.bench import body
from conceptors.bench.row import UnfitError
from conceptors.experiments.scenarios.data import CATALOGUE
from conceptors.experiments.scenarios.data.sentences import Sentences

CPU = torch.device("cpu")


class Encoder(nn.Module):
    """Words, and one layer on top of them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.layer = nn.Linear(8, 8)

    def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
        first = self.words(input_ids)
        return SimpleNamespace(hidden_states=(first, torch.tanh(self.layer(first))))


def _words(texts: list[str], _folder: Path) -> Tensor:
    return torch.tensor([[int(word) for word in text.split()] for text in texts])


@pytest.fixture
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four intents in two domains, each with five words of its own."""
    draw = torch.Generator().manual_seed(0)

    def part(count: int) -> tuple[list[str], list[int]]:
        labels = [k % 4 for k in range(count)]
        words = torch.randint(5, (count, 4), generator=draw)
        texts = [
            " ".join(str(1 + 5 * label + int(w)) for w in row) for label, row in zip(labels, words)
        ]
        order = torch.randperm(count, generator=draw).tolist()
        return [texts[k] for k in order], [labels[k] for k in order]

    parts = {"train": part(2400), "val": part(800), "test": part(800)}
    found = Sentences(parts, {"one": [0, 1], "two": [2, 3]}, ["a", "b", "c", "d"])
    monkeypatch.setattr(body, "sentences", lambda: found)
    monkeypatch.setattr(body, "encoder_folder", Path)
    monkeypatch.setattr(body, "encoder", lambda _: Encoder())
    monkeypatch.setattr(body, "token_ids", _words)


@pytest.mark.usefixtures("_made_up")
def test_all_ways_to_treat_the_encoder() -> None:
    rows = {row.setting.split(", ")[3]: row for row in body.body("tiny", CPU)}
    assert list(rows) == list(body.KINDS.values())
    for row in rows.values():
        assert row.what == "body"
        assert row.met is None
        assert row.ours is not None
        assert row.ours > 90
    drift = rows["shielded encoder"].notes["runs"][0]["out of date"]
    assert set(drift) == {"network.words", "network.layer"}


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONCEPTORS_DATA", str(tmp_path))
    monkeypatch.setenv("CONCEPTORS_CACHE", str(tmp_path))
    monkeypatch.setitem(CATALOGUE, "clinc150", replace(CATALOGUE["clinc150"], mirrors=()))
    monkeypatch.setattr(body, "encoder_folder", Path)
    with pytest.raises(UnfitError, match=r"clinc150: data_full.json, domains.json could not be"):
        body.body("tiny", CPU)
