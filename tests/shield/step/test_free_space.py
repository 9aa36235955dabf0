"""F = I - A in its factored form: what is taken off along each direction, and what is pulled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from conceptors.shield.step.free_space import FreeSpace, restrict
from helpers import normal, rotation, symmetric
from shield.step.common import odds, root

VALUES = torch.tensor([[0.0, 0.19, 0.75, 1.0]], dtype=torch.float64)


def space(values: Tensor = VALUES, **options: Tensor | float | int) -> FreeSpace:
    claimed = Conceptor.from_spectrum(rotation(0, 5)[None, :, : values.shape[-1]], values)
    return FreeSpace(claimed, torch.float64, **options)  # type: ignore[arg-type]


def test_gains_are_what_the_root_takes_off() -> None:
    """1 - √(1 - s), or s where F is applied at once; strongest directions first."""
    free = space()
    assert (free.dim, free.rank) == (5, 3)  # nothing is claimed along the first
    expected = torch.tensor([[[1.0, 0.5, 0.1]]], dtype=torch.float64)
    torch.testing.assert_close(free.gain().sort(descending=True).values, expected)
    expected = torch.tensor([[[1.0, 0.75, 0.19]]], dtype=torch.float64)
    torch.testing.assert_close(free.gain(once=True).sort(descending=True).values, expected)


def test_a_pull_is_stiffness_times_odds_times_what_is_free() -> None:
    """c q √(1 - s), or c q (1 - s) = c s; nothing where nothing can move."""
    stiffness = torch.tensor([4.0], dtype=torch.float64)
    free = space(stiffness=stiffness)
    found, order = free.pull(), free.values.argsort().flatten()
    assert found is not None
    expected = torch.tensor([4 * 0.19 / 0.9, 4 * 0.75 / 0.5, 0.0], dtype=torch.float64)
    torch.testing.assert_close(found[0, 0, order], expected)
    found = free.pull(once=True)
    assert found is not None
    expected = torch.tensor([4 * 0.19, 4 * 0.75, 4.0], dtype=torch.float64)
    torch.testing.assert_close(found[0, 0, order], expected)
    assert space().pull() is None


def test_matrices_are_those_of_the_definition() -> None:
    claimed = Conceptor.from_correlation(symmetric(1, 3, 9, 6), 2.0)
    stiffness = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    free = FreeSpace(claimed, torch.float64, stiffness=stiffness)
    half, pull = root(claimed.matrix()), free.pull()
    torch.testing.assert_close(torch.eye(6).double() - free.matrix(free.gain()), half)
    assert pull is not None
    wanted = stiffness[:, None, None] * odds(claimed) @ half
    torch.testing.assert_close(free.matrix(pull), wanted)


def test_room_is_made_by_smaller_odds_and_the_pull_stays() -> None:
    """Mean s is 1 - room, odds keep their ratios, and the spring is still c Q."""
    claimed = Conceptor.from_correlation(symmetric(1, 3, 9, 6), torch.tensor([30.0, 9.0, 0.1]))
    assert (claimed.quota[:2] > 0.7).all()
    assert claimed.quota[2] < 0.7
    stiffness = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    free = FreeSpace(claimed, torch.float64, stiffness=stiffness, room=0.3)
    mean = free.values.sum(-1) / 6
    torch.testing.assert_close(mean[:2], torch.full((2,), 0.7, dtype=torch.float64))
    torch.testing.assert_close(mean[2], claimed.quota[2])
    looser = torch.eye(6).double() - free.dense()
    own = torch.linalg.solve(torch.eye(6).double() - looser, looser)  # odds of what is projected
    ratio = own / odds(claimed)
    torch.testing.assert_close(ratio, ratio[:, :1, :1].expand_as(ratio))
    pull = free.pull(once=True)
    assert pull is not None
    wanted = stiffness[:, None, None] * odds(claimed) @ free.dense()
    torch.testing.assert_close(free.matrix(pull), wanted)


def test_without_room_nothing_is_changed() -> None:
    claimed = Conceptor.from_correlation(symmetric(1, 3, 9, 6), 2.0)
    plain, same = (FreeSpace(claimed, torch.float64, room=room) for room in (0.0, 1e-9))
    assert torch.equal(plain.values, same.values)
    nothing = Conceptor.from_spectrum(torch.zeros(2, 6, 0), torch.zeros(2, 0))
    assert FreeSpace(nothing, torch.float64, room=0.5).is_all


def test_what_may_not_move_at_all_does_not_though_there_is_no_room() -> None:
    assert space(torch.ones(1, 5).double(), room=0.5).hard
    some = torch.tensor([[1.0, 0.9, 0.9, 0.9, 0.0]]).double()
    found = space(some, room=0.4).values.sort(descending=True).values
    wanted = torch.tensor([[1.0, 2 / 3, 2 / 3, 2 / 3]]).double()
    torch.testing.assert_close(found[:, :4], wanted)


def test_weak_directions_count_as_free() -> None:
    values = torch.tensor([[0.9, 0.021, 0.02, 1e-9], [0.5, 0.4, 0.3, 0.01]]).double()
    vectors = torch.stack([rotation(0, 5)[:, :4], rotation(1, 5)[:, :4]])
    claimed = Conceptor.from_spectrum(vectors, values)
    assert FreeSpace(claimed, torch.float64).rank == 4
    free = FreeSpace(claimed, torch.float64, least=0.02)
    kept = [[0.0, 0.021, 0.9], [0.3, 0.4, 0.5]]  # the first group has fewer of them
    torch.testing.assert_close(free.values.sort().values, torch.tensor(kept).double())
    assert FreeSpace(claimed, torch.float64, rank=1).rank == 1


def test_what_vanishes_in_rounding_is_free() -> None:
    claimed = Conceptor.from_spectrum(
        rotation(0, 5)[None, :, :2], torch.tensor([[0.5, 1e-9]]).double()
    )
    assert FreeSpace(claimed, torch.float64).rank == 2
    for dtype in (torch.float32, torch.bfloat16):
        free = FreeSpace(claimed, dtype)
        assert (free.rank, free.values.dtype) == (1, torch.float32)


def test_all_but_a_few_directions_may_be_claimed() -> None:
    vectors = rotation(0, 5)
    claimed = ~Conceptor.from_spectrum(vectors[None, :, :2], torch.tensor([[1.0, 0.25]]).double())
    free = FreeSpace(claimed, torch.float64)
    assert (free.rank, free.hard) == (4, False)
    torch.testing.assert_close(free.matrix(free.gain(once=True)), claimed.matrix())
    assert FreeSpace(claimed.harden(), torch.float64).hard


@pytest.mark.parametrize("hard", [False, True])
def test_some_columns_alone_have_the_odds_of_the_submatrix(hard: bool) -> None:
    """With the others fixed, ΔW Q ΔWᵀ is that of the columns which may change."""
    columns = torch.tensor([0, 2, 3])
    if hard:
        claimed = Conceptor.from_spectrum(rotation(2, 5)[None, :, :2], torch.ones(1, 2).double())
        wanted = torch.linalg.qr(rotation(2, 5)[columns, :2]).Q
        expected = (wanted @ wanted.mT)[None]
    else:
        claimed = Conceptor.from_correlation(symmetric(2, 1, 9, 5), 1.5)
        part = odds(claimed)[:, columns][..., columns]
        expected = part @ torch.linalg.inv(part + torch.eye(3))
    torch.testing.assert_close(restrict(claimed, columns).matrix(), expected)
    if not hard:
        change = normal(3, 4, 3)
        wide = torch.zeros(4, 5).double()
        wide[:, columns] = change
        found = restrict(claimed, columns)
        torch.testing.assert_close(
            change @ odds(found)[0] @ change.mT, wide @ odds(claimed)[0] @ wide.mT
        )


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("least", [0.0, 0.3])
def test_the_whole_matrix_is_the_same_with_directions_and_without(
    rank: int | None, least: float
) -> None:
    states = torch.randn(3, 40, 5, generator=torch.Generator().manual_seed(0)).double()
    claimed = Conceptor.from_states(states * torch.tensor([1.0, 1.0, 1e-1, 1e-2, 0.0]), 1.5)
    options: dict[str, Any] = {"rank": rank, "least": least}
    one, other = (FreeSpace(claimed, torch.float64, **options) for _ in range(2))
    assert other.rank > 0
    torch.testing.assert_close(one.dense(), other.dense())
    assert not FreeSpace(claimed, torch.float64, **options).is_all
    nothing = Conceptor.from_states(states * 1e-9, 1.5)
    assert FreeSpace(nothing, torch.float64, **options).is_all
