"""Second moments over processes: two real ones that talk over gloo, against one that sees all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors import Correlation, FrequentDirections
from helpers import normal
from processes import Pair

WORLD = 2
DIM, RANK = 9, 4
Results = list[dict[str, Tensor]]


def samples(rank: int) -> Tensor:
    return normal(rank, 20 + 10 * rank, DIM)


def reduced(rank: int) -> dict[str, Tensor]:
    """What one process finds."""
    weights = torch.full((len(samples(rank)),), 1.0 + rank).double()
    R = Correlation(DIM).update(samples(rank), weights)
    sketch = FrequentDirections(DIM, RANK)
    for part in samples(rank).split(6):
        sketch.update(part, torch.full((len(part),), 1.0 + rank).double())
    few = FrequentDirections(DIM, RANK)
    if rank == 1:  # the other has seen nothing
        few.update(samples(1)[:3])
    for thing in (R, sketch, few):
        assert thing.all_reduce() is thing
    return {
        "R": R.matrix(),
        "numbers": torch.tensor([R.weight, R.count, sketch.weight, sketch.count]),
        "rows": sketch.rows(),
        "bound": torch.tensor(sketch.error_bound, dtype=torch.float64),
        "few": few.rows(),
    }


@pytest.fixture(scope="module")
def results(pair: Pair) -> Results:
    return pair(reduced)


def everything() -> tuple[Tensor, Tensor]:
    """All samples and their weights."""
    parts = [samples(rank) for rank in range(WORLD)]
    weights = [torch.full((len(part),), 1.0 + i).double() for i, part in enumerate(parts)]
    return torch.cat(parts), torch.cat(weights)


def test_every_process_has_the_same(results: Results) -> None:
    for name in results[0]:
        assert torch.equal(results[0][name], results[1][name]), name


def test_the_correlation_is_that_of_one_process(results: Results) -> None:
    X, w = everything()
    one = Correlation(DIM).update(X, w)
    torch.testing.assert_close(results[0]["R"], one.matrix(), rtol=1e-12, atol=1e-14)
    assert results[0]["numbers"].tolist() == [80, 50, 80, 50] == [one.weight, one.count] * 2


def test_the_sketch_keeps_its_bounds(results: Results) -> None:
    X, w = everything()
    rows, bound = results[0]["rows"], float(results[0]["bound"])
    R = (X.mT * w) @ X / w.sum()
    gap = torch.linalg.eigvalsh(R - rows.mT @ rows)
    assert float(gap.min()) > -1e-12
    assert float(gap.max()) <= bound + 1e-12
    sigma = torch.linalg.eigvalsh(R).flip(0)
    for k in range(RANK + 1):
        assert 0 < bound <= float(sigma[k:].sum()) / (RANK + 1 - k)


def test_a_process_without_samples_takes_part(results: Results) -> None:
    rows, X = results[0]["few"], samples(1)[:3]
    torch.testing.assert_close(rows.mT @ rows, X.mT @ X / 3)
