"""The program of the tutorial, with a small encoder and few sentences."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from conceptors.experiments.scenarios.data.files import CATALOGUE
from experiments.test_data import facts

PROGRAM = Path(__file__).parents[2] / "examples" / "pretrained_classifier.py"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the examples are in the checkout")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

DOMAINS = {
    "bank": ["balance", "lost_card", "track_order"],
    "home": ["weather", "heating", "recipe"],
    "travel": ["book_flight", "translate"],
}


def small_encoder(folder: Path, texts: list[str]) -> None:
    """A BERT of two layers that knows the words of some texts, and nothing about them."""
    words = sorted({word for text in texts for word in text.split()})
    numbers = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
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


def test_domains_are_learned_saved_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # five words of its own for every intent, in sentences of three
    rows = [
        [f"{name}{i} {name}{(i + 1) % 5} {name}{(i + k) % 5}", name]
        for names in DOMAINS.values()
        for name in names
        for i in range(5)
        for k in (2, 3)
    ]
    contents = {"data_full.json": dict.fromkeys(("train", "val", "test"), rows)}
    (tmp_path / "clinc150").mkdir()
    entries = {}
    for file, content in {**contents, "domains.json": DOMAINS}.items():
        text = json.dumps(content)
        (tmp_path / "clinc150" / file).write_text(text)
        entries[file] = facts(text.encode(), file, text.encode())
    monkeypatch.setitem(CATALOGUE, "clinc150", entries)
    monkeypatch.setenv("CONCEPTORS_DATA", str(tmp_path))
    small_encoder(tmp_path / "encoder", [text for text, _ in rows])
    quick = ["--encoder", tmp_path / "encoder", "--epochs", 25, "--rate", 3e-3]

    def run(*words: object) -> dict[str, float]:
        """Accuracy per domain, on the last line."""
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), *map(str, words)])
        runpy.run_path(str(PROGRAM), run_name="__main__")
        last = capsys.readouterr().out.splitlines()[-1]
        return {domain: float(v) for domain, v in re.findall(r"(\w+) (\d+\.\d) %", last)}

    assert run(tmp_path / "model", "bank", "home", *quick).keys() == {"bank", "home"}
    kept = run(tmp_path / "model", "travel", *quick)  # next month
    assert run(tmp_path / "model") == kept  # loaded as it was saved
    assert min(kept.values()) > 70
    plain = run(tmp_path / "plain", "bank", "travel", "--plain", *quick)
    assert plain["travel"] > 70
    assert plain["bank"] < 40  # forgotten
    answer = runpy.run_path(str(PROGRAM))["Intents"](tmp_path / "model").answer
    assert answer(["heating0 heating1 heating2"]) == ["heating"]
