"""The tutorial from a pretrained encoder to a served model, with a small encoder of its own."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from integrations.launch import EXAMPLES, start

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are in the checkout")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

PROGRAM = EXAMPLES / "pretrained_classifier.py"
DOMAINS = {
    "bank": ["balance", "lost_card", "track_order"],
    "home": ["weather", "heating", "recipe"],
    "travel": ["book_flight", "translate"],
}


def small_encoder(folder: Path, texts: list[str]) -> None:
    """A BERT of two layers that knows the words of some texts, and nothing about them."""
    words = sorted({word for text in texts for word in text.replace(",", " ,").split()})
    numbers = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(numbers),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=32,
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)


def shares(text: str) -> dict[str, float]:
    """Of each domain, on the last line."""
    found = re.findall(r"(\w+) (\d+\.\d)", text.splitlines()[-1].partition("(")[2])
    return {domain: float(share) for domain, share in found}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server in a process of its own."""
    command = [sys.executable, str(PROGRAM), "serve", str(folder), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def post(address: str, content: Any) -> Any:
    request = urllib.request.Request(address, json.dumps(content).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def test_learned_saved_loaded_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = runpy.run_path(str(EXAMPLES / "sentence_intents.py"))["SENTENCES"]
    rows = [[text, intent] for own in DOMAINS.values() for intent in own for text in texts[intent]]
    (tmp_path / "clinc150").mkdir()
    content = json.dumps(dict.fromkeys(("train", "val", "test"), rows))
    (tmp_path / "clinc150" / "data_full.json").write_text(content)
    (tmp_path / "clinc150" / "domains.json").write_text(json.dumps(DOMAINS))
    small_encoder(tmp_path / "encoder", [text for text, _ in rows])
    monkeypatch.setenv("CONCEPTORS_DATA", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    quick = ["--encoder", tmp_path / "encoder", "--epochs", 25, "--rate", 3e-3]

    def here(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), *map(str, words)])
        runpy.run_path(str(PROGRAM), run_name="__main__")
        return capsys.readouterr().out

    first = start(PROGRAM, "learn", tmp_path / "model", "bank", "home", *quick)
    assert shares(first).keys() == {"bank", "home"}
    # next month, in another process
    after = here("learn", tmp_path / "model", "travel", *quick)
    assert here("test", tmp_path / "model") == after  # loaded as it was saved
    assert "8 intents" in after
    kept = shares(after)
    assert min(kept.values()) > 70
    plain = shares(here("learn", tmp_path / "plain", "bank", "travel", "--plain", *quick))
    assert plain["travel"] > 70
    assert plain["bank"] < 40  # forgotten

    with pytest.raises(SystemExit, match="knows 'travel' already"):
        here("learn", tmp_path / "model", "travel", *quick)
    with pytest.raises(SystemExit, match="no domain 'work'; there are bank, home, travel"):
        here("learn", tmp_path / "model", "work", *quick)

    with served(tmp_path / "model") as address:
        asked = ["I lost my debit card on the train", "will it rain tomorrow", "fly me to the moon"]
        answers = post(address, {"texts": asked})
        assert answers == runpy.run_path(str(PROGRAM))["Intents"](tmp_path / "model").answer(asked)
        assert answers[0]["intent"] == "lost_card"
        assert all(0 < answer["chance"] <= 1 for answer in answers)
        assert post(address, {"texts": []}) == []
        for wrong in ({"text": "rain"}, {"texts": "rain"}, [1]):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                post(address, wrong)
