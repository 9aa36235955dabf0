"""Which batches and rows are recorded: few enough to be fast, enough to be right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import conceptors.shield.remember.moments
from conceptors import Conceptor, Shield
from conceptors.shield.blocks import scan
from conceptors.shield.remember import recorder
from conceptors.shield.remember.moments import multiplied
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


def shuffled(x: Tensor) -> Tensor:
    return x[torch.randperm(len(x), generator=generator(5))]


def gather(
    model: nn.Module, batches: Any, rows: Any = "auto", seed: int = 0, **options: Any
) -> dict[str, Any]:
    settings: dict[str, Any] = {"feed": None, "limit": None, **options}
    return dict(
        collect(
            model,
            scan(model, (), ()).sites,
            batches,
            rows=rows,
            seed=seed,
            dtype=torch.float64,
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
@pytest.mark.parametrize("order", ["sorted", "shuffled"])
@pytest.mark.parametrize("size", [256, 2048])
def test_the_sampled_conceptor_is_close_to_the_exact_one(
    loader: Callable[[Any], Any], order: str, size: int
) -> None:
    x = classes(8, 16384)
    x = x if order == "sorted" else shuffled(x)
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


def test_the_same_seed_gives_the_same_sums() -> None:
    batches = classes(8, 16384).split(1024)
    one, same, other = (gather(linear(), batches, seed=s)["Linear"].total for s in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


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


@pytest.mark.parametrize("rows", [None, 50])
def test_an_explicit_number_of_rows_is_for_every_batch(rows: int | None) -> None:
    model, x = linear(), classes(8, 16384)
    assert hooked(model, x.split(1024), rows=rows) == [2] * 128
    found = gather(model, x.split(1024), rows=rows)["Linear"]
    assert found.weight == pytest.approx(len(x))
    if rows is None:
        torch.testing.assert_close(found.correlation()[0], exact(x), rtol=0, atol=1e-12)


def test_rows_multiplied_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counting(chunks: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        nonlocal count
        count += sum(chunk.shape[1] for chunk in chunks)
        return multiplied(chunks, dtype)

    monkeypatch.setattr(conceptors.shield.remember.moments, "multiplied", counting)
    x = normal(0, 2**18, 8)
    gather(linear(8, 4), x.split(4096))
    assert 16384 <= count <= 5 * 16384
    count = 0
    gather(linear(8, 4), endless(x.split(4096)))
    assert 16384 <= count <= 5 * 16384
    count = 0
    gather(linear(8, 4), x.split(4096), limit=4096 * 3)
    assert count == 4096 * 3


# --- what is reached now and then ----------------------------------------------------------


class Sometimes(nn.Module):
    """A layer for every batch, called twice, and one for batches of negative sum."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.rarely = linear(4, 4), linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.always(self.always(x))
        return self.rarely(x) if float(x.sum()) < 0 else y


@loaders
@pytest.mark.parametrize("where", [(13,), (99,), (3, 50)])
def test_layers_that_few_batches_reach(
    loader: Callable[[Any], Any], where: tuple[int, ...]
) -> None:
    batches = [normal(i, 600, 4).abs() for i in range(100)]
    for i in where:
        batches[i] = -batches[i]
    found = gather(Sometimes(), loader(batches))
    rows = batches[where[0]]
    if len(where) == 1:
        torch.testing.assert_close(found["rarely"].correlation()[0], exact(rows))
        assert found["rarely"].weight == 600
    assert found["rarely"].weight >= 600
    assert found["always"].weight == pytest.approx(2 * 600 * 100, rel=0.1)


def test_tokens_are_counted_in_every_batch() -> None:
    model = nn.Sequential(nn.Embedding(200, 4), nn.Linear(4, 2)).double()
    batches = [torch.arange(2000) % 90 for _ in range(99)] + [torch.arange(2000) % 200]
    found = gather(model, batches)["0"]
    counts = torch.stack([batch.bincount(minlength=200) for batch in batches]).sum(0)
    assert torch.equal(found.total.flatten(), counts.double())
    assert found.weight == 200000


class Text(nn.Module):
    """Words and places, as language models have them."""

    def __init__(self, shifted: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(200, 4).double(), nn.Embedding(20, 4).double()
        self.head = linear(4, 2)
        self.shifted = shifted

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x % 7 if self.shifted else x)
        found: Tensor = self.head(words + self.places(torch.arange(x.shape[1])))
        return found


@pytest.mark.parametrize("form", ["tensor", "pair", "mapping"])
def test_words_of_the_batch_are_counted_without_a_pass(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(i + 1, (50, 20), generator=generator) for i in range(128)]
    other = torch.zeros(50, 20, dtype=torch.long)  # the same as the first text
    batches: list[Any] = texts
    if form != "tensor":
        batches = [(text, other) for text in texts]
    if form == "mapping":
        batches = [{"labels": other, "x": text} for text in texts]
    ran = 0

    def feed(model: nn.Module, batch: Any) -> None:
        nonlocal ran
        ran += 1
        model(batch if form == "tensor" else batch["x"] if form == "mapping" else batch[0])

    found = gather(Text(), batches, feed=feed)
    counts = torch.stack([text.flatten().bincount(minlength=200) for text in texts]).sum(0)
    assert torch.equal(found["words"].total.flatten(), counts.double())
    assert ran <= 40
    assert bool((found["places"].total.flatten() > 0).all())
    assert found["places"].weight == pytest.approx(20 * 128, rel=0.15)


def test_batches_of_other_forms_are_looked_at_anew() -> None:
    """Other parts, another order of them, or longer texts, which this model cuts."""
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(i + 1, (50, 20), generator=generator) for i in range(128)]
    batches: list[Any] = [{"x": text} for text in texts[:40]]
    batches += [{"labels": text * 0, "x": text} for text in texts[40:80]]
    batches += [{"x": torch.cat([text, text * 0 + 199], 1)} for text in texts[80:]]
    found = gather(Text(), batches, feed=lambda model, batch: model(batch["x"][:, :20]))
    counts = torch.stack([text.flatten().bincount(minlength=200) for text in texts]).sum(0)
    assert torch.equal(found["words"].total.flatten(), counts.double())


def test_words_that_are_not_the_batch_need_every_pass() -> None:
    texts = [torch.arange(1000).reshape(50, 20) % (i + 1) for i in range(64)]
    ran = hooked(Text(shifted=True), texts)
    assert len(ran) == 64


class Overwrites(nn.Module):
    """Changes what a layer was given after the layer has used it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        y: Tensor = self.layer(x)
        x.zero_()
        return y


@pytest.mark.parametrize("size", [50, 5000, 40000])
def test_rows_are_those_that_the_layer_saw(size: int) -> None:
    x = classes(4, 10000, dim=4)
    found = gather(Overwrites(), x.split(size))["layer"]
    torch.testing.assert_close(found.correlation()[0], exact(x), rtol=0.2, atol=0.02)


# --- not finite ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0, 63, 64, 99])
def test_bad_rows_are_found_wherever_they_are_recorded(where: int) -> None:
    batches = [normal(i, 20, DIM) for i in range(100)]  # so few that all are used
    batches[where][3, 5] = torch.inf
    model = nn.Sequential(linear(), linear(8, 8), linear(8, 2))
    with pytest.raises(ValueError, match=rf"enter '0' \(and 2 more layers\) in batch {where};"):
        gather(model, batches)


# --- products ------------------------------------------------------------------------------


def test_queries_keys_and_values_are_multiplied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Separate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = linear(8), linear(8), linear(8)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.q(x) * self.k(x) + self.v(x)
            return found

    sizes: list[int] = []

    def counting(chunks: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        sizes.append(len(chunks))
        return multiplied(chunks, dtype)

    monkeypatch.setattr(conceptors.shield.remember.moments, "multiplied", counting)
    x = normal(0, 2**18, 8)
    found = gather(Separate(), x.split(8192))
    once = len(sizes)
    gather(linear(8), x.split(8192))
    assert len(sizes) == 2 * once
    assert torch.equal(found["q"].total, found["v"].total)

    sizes.clear()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    gather(attention, x.view(-1, 64, 8).split(128), feed=lambda m, b: m(b, b, b))
    assert len(sizes) == 2 * once  # and what enters the output projection


def test_rows_under_autocast_are_those_that_the_layer_multiplies() -> None:
    x = normal(0, 3000, 16).float()
    layer = nn.Linear(16, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gather(layer, [x])["Linear"].correlation()[0]
    rounded = exact(x.bfloat16().double())
    torch.testing.assert_close(found, rounded, rtol=1e-6, atol=1e-6)


def test_the_shield_takes_its_rows_from_here() -> None:
    x = classes(8, 8192)
    wanted = Shield(linear(), 9.0, rows=None, warn_at_quota=1.0).remember(x.split(512))
    sampled = Shield(linear(), 9.0, warn_at_quota=1.0).remember(x.split(512))
    a, b = (shield.conceptors()["Linear"].matrix() for shield in (sampled, wanted))
    assert 0 < float((a - b).norm() / b.norm()) < 0.06
    assert sampled.quota()["Linear"] == pytest.approx(wanted.quota()["Linear"], abs=0.01)
