"""Padding, which an `attention_mask` marks, does not count as input."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import generator
from shield.common import moments

WORDS, WIDTH, LENGTHS = 30, 8, (3, 8, 5, 1)  # the longest text is as long as vectors are wide


class Encoder(nn.Module):
    """Words, a transformer, a gated norm, and a pooler of the first position."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.TransformerEncoderLayer(WIDTH, 2, 12, batch_first=True)
        self.flat = nn.Linear(WIDTH, WIDTH)
        self.gate = Gate()
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.mix(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        x = self.gate(self.flat(x.flatten(0, 1)).unflatten(0, x.shape[:2]), x)
        return self.pooler(x[:, 0])  # type: ignore[no-any-return]


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return self.weight * x * gate.sigmoid()


def encoder() -> Any:
    torch.manual_seed(0)
    return Encoder().double().eval()


def texts() -> list[dict[str, Tensor]]:
    draw = generator(0)
    ids = [torch.randint(1, WORDS, (1, length), generator=draw) for length in LENGTHS]
    return [{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in ids]


def padded(left: bool = False) -> dict[str, Tensor]:
    """All texts in one batch."""
    rows = {name: [text[name][0] for text in texts()] for name in texts()[0]}
    side = "left" if left else "right"
    return {
        name: nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_side=side)
        for name, parts in rows.items()
    }


@pytest.mark.parametrize("all_rows", [True, False], ids=["hard", "soft"])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_padded_batch_counts_as_its_texts_one_by_one(all_rows: bool, left: bool) -> None:
    batch = padded(left)
    if left:  # the pooler's position is padding
        batch["attention_mask"][:, 0] = 1
    one_by_one = [
        {name: values[i : i + 1, batch["attention_mask"][i] > 0] for name, values in batch.items()}
        for i in range(len(LENGTHS))
    ]
    together = moments(encoder(), [batch], all_rows=all_rows)
    for name, alone in moments(encoder(), one_by_one, all_rows=all_rows).items():
        assert together[name].sums.weight == alone.sums.weight
        torch.testing.assert_close(together[name].sums.sum, alone.sums.sum, rtol=0, atol=1e-10)


def test_padding_is_never_drawn() -> None:
    x = torch.randn(64, 400, 4, generator=generator(0)).double()
    mask = torch.ones(64, 400).long()
    mask[1:, 300:] = 0
    x[mask == 0] = torch.nan
    layer, batch = nn.Linear(4, 2).double(), {"x": x, "attention_mask": mask}
    sums = moments(layer, [batch] * 3, feed=lambda model, batch: model(batch["x"]), all_rows=False)[
        "Linear"
    ].sums
    assert sums.weight == pytest.approx(3 * int(mask.sum()))
    usual = moments(layer, [x[mask > 0]])["Linear"].correlation()
    torch.testing.assert_close(sums.matrix(), usual, rtol=0, atol=0.1)


@pytest.mark.parametrize("kind", ["additive", "encoder-decoder", "no mask", "4-D"])
def test_other_masks_do_not_change_what_counts(kind: str) -> None:
    model, batch = encoder(), padded()
    batch["attention_mask"][:, 0] = 1
    if kind == "encoder-decoder":  # the mask is not that of the decoder
        model.config = SimpleNamespace(is_encoder_decoder=True)
    mask = batch["attention_mask"]
    masks = {"additive": (mask - 1) * 1e4, "4-D": mask[:, None, None]}
    given = {**batch, "attention_mask": masks.get(kind, mask)}
    if kind == "no mask":
        del given["attention_mask"]
    found = moments(model, [given], feed=lambda model, _: model(*batch.values()))
    assert found["words"].sums.weight == batch["input_ids"].numel()
    assert found["mix.self_attn.out"].sums.weight == batch["input_ids"].numel()


def test_each_call_of_a_feed_has_its_own_mask() -> None:
    """As for pairs of texts, of which one is padded."""
    batch = padded()
    ids, mask = batch["input_ids"], batch["attention_mask"]

    def feed(model: nn.Module, _: Any) -> None:
        for each in (mask, torch.ones_like(mask)):
            model(input_ids=ids, attention_mask=each)

    found = moments(encoder(), [ids], feed=feed)
    assert found["words"].sums.weight == mask.sum() + mask.numel()
