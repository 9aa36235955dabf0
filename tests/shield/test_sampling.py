"""Which rows are recorded: few enough to be fast, enough to be right."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors.shield import collect
from helpers import generator, normal, rotation
from shield.common import moments, with_unit

DIM = 24


def classes(count: int, each: int, dim: int = DIM) -> Tensor:
    """Rows sorted by class; every class has its own mean and main directions."""
    scale = torch.arange(1.0, dim + 1, dtype=torch.float64) ** -1.0
    rows = [
        normal(2000 + seed, each, dim) * scale @ rotation(seed, dim) + 0.3 * normal(seed, dim)
        for seed in range(count)
    ]
    return torch.cat(rows)


def gather(model: nn.Module, batches: Any, **options: Any) -> dict[str, Any]:
    return moments(model, batches, all_rows=False, **options)


def linear(dim: int = DIM, outputs: int = 8) -> nn.Linear:
    return nn.Linear(dim, outputs).double()


def exact(rows: Tensor) -> Tensor:
    wide = with_unit(rows)
    return wide.mT @ wide / len(wide)


def endless(batches: Any) -> Iterator[Any]:
    """The same batches, of unknown number."""
    yield from batches


loaders = pytest.mark.parametrize("loader", [list, endless], ids=["list", "stream"])
Loader = Callable[[Any], Any]


@loaders
@pytest.mark.parametrize("size", [100, 500, 16000])
def test_few_rows_are_all_used(loader: Loader, size: int) -> None:
    x = classes(4, 4000)
    moment = gather(linear(), loader(x.split(size)))["Linear"]
    torch.testing.assert_close(moment.correlation()[0], exact(x), rtol=0, atol=1e-12)
    assert moment.sums.weight == len(x)


@loaders
@pytest.mark.parametrize("count", [5, 37])
def test_sums_are_unbiased(loader: Loader, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many seeds the mean of the sums is the sum over all rows, sorted as they are."""
    for name, value in {"_FIRST": 2, "_FEWEST": 2, "enough": lambda dim: 12}.items():
        monkeypatch.setattr(collect, name, value)
    x = classes(count, 9, dim=3)
    batches, seeds, model = x.split(9), 200, linear(3)
    drawn = [gather(model, loader(batches), seed=seed)["Linear"] for seed in range(seeds)]
    totals = torch.stack([moment.sums.sum[0] for moment in drawn])
    spread = (totals.var(0).sum() / seeds).sqrt()  # the norm's standard error
    assert float(spread) > 0
    assert float((totals.mean(0) - exact(x) * len(x)).norm()) < 3 * float(spread)
    weights = torch.tensor([moment.sums.weight for moment in drawn], dtype=torch.float64)
    assert float((weights.mean() - len(x)).abs()) <= 3 * float(weights.std()) / seeds**0.5 + 1e-9


class Text(nn.Module):
    """Words and places, as language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(200, 4).double(), nn.Embedding(20, 4).double()
        self.head = linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x) + self.places(torch.arange(x.shape[1])))  # type: ignore[no-any-return]


def test_words_of_every_batch_are_counted() -> None:
    draw = generator(0)
    texts = [torch.randint(i + 1, (50, 20), generator=draw) for i in range(128)]
    total = gather(Text(), texts)["words"].sums.sum.flatten()
    assert torch.equal(total, torch.cat(texts).flatten().bincount(minlength=200).double())
