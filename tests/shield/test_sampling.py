"""Which batches and rows are recorded: few enough to be fast, enough to be right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Conceptor
from conceptors.shield.blocks import scan
from conceptors.shield.remember import recorder
from conceptors.shield.remember.run import collect
from helpers import generator, normal

DIM = 24


def classes(count: int, each: int, dim: int = DIM) -> Tensor:
    """Rows sorted by class; every class has a mean and main directions of its own."""
    found = []
    for seed in range(count):
        turn = torch.linalg.qr(normal(seed, dim, dim)).Q
        scale = torch.arange(1.0, dim + 1, dtype=torch.float64) ** -1.0
        mean = 0.3 * normal(1000 + seed, dim)
        found.append(normal(2000 + seed, each, dim) * scale @ turn + mean)
    return torch.cat(found)


def gather(
    model: nn.Module, batches: Any, all_rows: bool = False, seed: int = 0, **options: Any
) -> dict[str, Any]:
    settings: dict[str, Any] = {"feed": None, "limit": None, **options}
    return dict(
        collect(
            model,
            scan(model, (), ()).sites,
            batches,
            all_rows=all_rows,
            seed=seed,
            sketch=lambda _dim: None,
            progress=False,
            **settings,
        )
    )


def linear(dim: int = DIM, outputs: int = 8) -> nn.Linear:
    return nn.Linear(dim, outputs).double()


def exact(rows: Tensor) -> Tensor:
    wide = torch.cat([rows, torch.ones(len(rows), 1).double()], 1)
    return wide.mT @ wide / len(wide)


def endless(batches: Any) -> Iterator[Any]:
    """The same batches, of unknown number."""
    yield from batches


LOADERS: dict[str, Callable[[Any], Any]] = {"list": list, "stream": endless}
loaders = pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)


# --- how good ------------------------------------------------------------------------------


@loaders
def test_few_rows_are_all_used(loader: Callable[[Any], Any]) -> None:
    x = classes(4, 4000)
    for size in (100, 500, 16000):
        found = gather(linear(), loader(x.split(size)))["Linear"]
        torch.testing.assert_close(found.correlation()[0], exact(x), rtol=0, atol=1e-12)
        assert found.weight == len(x)


@loaders
@pytest.mark.parametrize("size", [256, 2048])
def test_the_sampled_conceptor_is_close_to_the_exact_one(
    loader: Callable[[Any], Any], size: int
) -> None:
    x = classes(8, 16384)
    wanted = Conceptor.from_correlation(exact(x), 9.0)
    for seed in range(3):
        found = gather(linear(), loader(x.split(size)), seed=seed)["Linear"]
        sampled = found.conceptor(9.0)[0]
        error = float((sampled.matrix() - wanted.matrix()).norm() / wanted.matrix().norm())
        assert 0 < error < 0.05
        assert float(sampled.quota) == pytest.approx(float(wanted.quota), abs=0.01)
        assert found.weight == pytest.approx(len(x), rel=0.1)


@loaders
@pytest.mark.parametrize("count", [5, 37, 70])
def test_sums_are_unbiased(
    loader: Callable[[Any], Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many seeds the mean of the sums is the sum over all rows, sorted as they are."""
    for name, value in {"_FIRST": 2, "_FEWEST": 2, "_SPREAD": 3}.items():
        monkeypatch.setattr(recorder, name, value)
    monkeypatch.setattr(recorder, "enough", lambda dim: 12)
    x = classes(count, 9, dim=3)
    batches, seeds = x.split(9), 300
    model = linear(3)
    wanted = exact(x) * len(x)
    drawn = [gather(model, loader(batches), seed=seed)["Linear"] for seed in range(seeds)]
    totals = torch.stack([found.total[0] for found in drawn])
    spread = (totals.var(0).sum() / seeds).sqrt()  # the norm's standard error
    assert float(spread) > 0
    assert float((totals.mean(0) - wanted).norm()) < 3 * float(spread)
    weights = torch.tensor([found.weight for found in drawn], dtype=torch.float64)
    assert float((weights.mean() - len(x)).abs()) <= 3 * float(weights.std()) / seeds**0.5 + 1e-9


# --- how little ----------------------------------------------------------------------------


def hooked(model: nn.Module, batches: Any, **options: Any) -> list[int]:
    """How many hooks there are in each batch that is run."""
    found: list[int] = []

    def feed(model: nn.Module, batch: Any) -> None:
        found.append(sum(len(part._forward_hooks) for part in model.modules()))
        model(batch)

    gather(model, batches, feed=feed, **options)
    assert not any(part._forward_hooks for part in model.modules())
    return found


def test_most_batches_are_not_even_run() -> None:
    model = nn.Sequential(linear(), nn.LayerNorm(8).double(), nn.ReLU(), linear(8, 2))
    batches = [normal(i, 1000, DIM) for i in range(10)] * 16
    present = hooked(model, batches)
    assert set(present) == {6}  # in step: one that records, one that watches, for each layer
    assert 20 <= len(present) <= 22
    assert 30 <= len(hooked(model, endless(batches))) <= 70


def test_tokens_are_counted_in_every_batch() -> None:
    model = nn.Sequential(nn.Embedding(200, 4), nn.Linear(4, 2)).double()
    batches = [torch.arange(2000) % 90 for _ in range(99)] + [torch.arange(2000) % 200]
    found = gather(model, batches)["0"]
    counts = torch.stack([batch.bincount(minlength=200) for batch in batches]).sum(0)
    assert torch.equal(found.total.flatten(), counts.double())
    assert found.weight == 200000


class Text(nn.Module):
    """Words and places, as language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(200, 4).double(), nn.Embedding(20, 4).double()
        self.head = linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.words(x) + self.places(torch.arange(x.shape[1])))
        return found


def test_words_of_the_batch_are_counted_without_a_pass() -> None:
    """Also in mappings whose parts change, and in texts that the caller cuts."""
    draw = generator(0)
    texts = [torch.randint(i + 1, (50, 20), generator=draw) for i in range(128)]
    batches: list[Any] = [{"x": text} for text in texts[:40]]
    batches += [{"labels": text * 0, "x": text} for text in texts[40:80]]
    batches += [{"x": torch.cat([text, text * 0 + 199], 1)} for text in texts[80:]]
    ran = 0

    def feed(model: nn.Module, batch: Any) -> None:
        nonlocal ran
        ran += 1
        model(batch["x"][:, :20])

    found = gather(Text(), batches, feed=feed)
    counts = torch.stack([text.flatten().bincount(minlength=200) for text in texts]).sum(0)
    assert torch.equal(found["words"].total.flatten(), counts.double())
    assert ran < 100
