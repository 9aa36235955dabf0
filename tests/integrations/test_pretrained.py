"""Rows of the comparison that need peft, on a tiny BERT with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.wording import WORDS, forget, use_made_up

pytest.importorskip("transformers")
pytest.importorskip("peft")

from conceptors.bench.pretrained.adapters import Osf
from conceptors.bench.pretrained.cells import Cell, final, quiet, run
from conceptors.bench.pretrained.registry import ROWS
from conceptors.bench.pretrained.stream import Size, read

SMALL = Size(2, 50)
QUICK = {"rate": 3e-3, "head_rate": 1e-2, "epochs": 4, "lift": 100, "fisher_sentences": 5}


def tiny_bert() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    return BertModel(config, add_pooling_layer=False)


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_made_up(monkeypatch, tiny_bert)
    yield
    forget()


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_every_row_learns_with_bert(name: str) -> None:
    found = run(Cell(name, 0, QUICK, "val", True, SMALL, "cpu"))
    assert final(found["known"]) > 75


def test_osf_keeps_what_each_domain_has_learned() -> None:
    """Not as in peft's recipe, whose `unload` drops it."""
    with quiet():
        method = Osf(read(SMALL, "cpu"), QUICK, 0, "cpu")
        names = [name for name, _ in method.model.body.named_parameters()]
        before = weights(method)
        method.learn(0)
        after = weights(method)
    assert [name for name, _ in method.model.body.named_parameters()] == names
    moved = {name for name in names if not torch.equal(before[name], after[name])}
    assert moved == {name for name in names if name.endswith(("dense.weight", "key.weight"))} | {
        name for name in names if name.endswith(("query.weight", "value.weight"))
    }


def test_osf_freezes_more_from_domain_to_domain() -> None:
    with quiet():
        method = Osf(read(SMALL, "cpu"), {}, 0, "cpu")
    assert [method._frozen(k) for k in range(2)] == [1, 0.5]


def weights(method: Osf) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in method.model.body.named_parameters()}
