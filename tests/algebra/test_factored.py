"""The factored form: equal to the dense one everywhere, bounded errors, and never d x d."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import Conceptor, similarity
from helpers import conceptors, distance, eye, largest_tensor, normal, rotation, same

Unary = Callable[[Conceptor], Conceptor]
Binary = Callable[[Conceptor, Conceptor], Conceptor]

UNARY: dict[str, Unary] = {
    "not": lambda c: ~c,
    "not-not": lambda c: ~~c,
    "wider": lambda c: c.adapt(3.0),
    "narrower": lambda c: c.adapt(0.2),
    "widest": lambda c: c.adapt(math.inf),
    "narrowest": lambda c: c.adapt(0),
    "harden": lambda c: c.harden(0.4),
}
BINARY: dict[str, Binary] = {
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
    "or-not": lambda a, b: a | ~b,
    "not-or": lambda a, b: ~a | b,
    "and-not": lambda a, b: a & ~b,
    "nor": lambda a, b: ~a & ~b,
    "nand": lambda a, b: ~a | ~b,
}


def hold(seed: int, dim: int, rank: int, rest: float = 0.0) -> Conceptor:
    """A conceptor of some directions, their singular values 0, 1 and between."""
    s = (3 * normal(seed, rank)).sigmoid()
    s[1::4], s[2::4] = 1.0, 0.0
    return Conceptor.from_spectrum(rotation(seed, dim)[:, :rank], s, rest=rest)


@given(conceptors(1), st.sampled_from(sorted(UNARY)))
def test_operators_on_one_do_not_depend_on_the_form(one: list[Conceptor], name: str) -> None:
    C, change = one[0], UNARY[name]
    assert same(change(C), change(C.dense()), 1e-10)
    assert same(change(C), change(C.factored()), 1e-10)


@given(conceptors(2), st.sampled_from(sorted(BINARY)))
def test_operators_on_two_do_not_depend_on_the_form(pair: list[Conceptor], name: str) -> None:
    (A, B), join = pair, BINARY[name]
    wanted = join(A.dense(), B.dense())
    for a in (A, A.dense(), A.factored()):
        for b in (B, B.dense(), B.factored()):
            assert same(join(a, b), wanted, 1e-8)
            assert float(similarity(a, b)) == pytest.approx(float(similarity(A, B)), abs=1e-10)
            assert bool(a <= b) == bool(A.dense() <= B.dense())


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("rest_a", [0.0, 1.0])
@pytest.mark.parametrize("rest_b", [0.0, 1.0])
def test_results_stay_factored(name: str, rest_a: float, rest_b: float) -> None:
    """In 40 dimensions, ranks 5 and 7: no operation makes more than 12 directions of them."""
    A, B = hold(0, 40, 5, rest_a), hold(1, 40, 7, rest_b)
    found = BINARY[name](A, B)
    assert found.is_factored
    assert found.rank <= 12
    assert same(found, BINARY[name](A.dense(), B.dense()), 1e-9)
    U, s, rest = found.spectrum
    assert rest in (0.0, 1.0)
    assert distance(U.mT @ U, eye(found.rank)) < 1e-13
    assert not bool((s == rest).any())  # nothing is held that the rest says already


@pytest.mark.parametrize("rest_a", [0.0, 1.0])
@pytest.mark.parametrize("rest_b", [0.0, 1.0])
@pytest.mark.parametrize("ranks", [(0, 0), (0, 3), (3, 0), (1, 8), (4, 5), (9, 0)])
def test_rank_zero_to_full(ranks: tuple[int, int], rest_a: float, rest_b: float) -> None:
    A, B = hold(0, 9, ranks[0], rest_a), hold(1, 9, ranks[1], rest_b)
    for name, join in BINARY.items():
        assert same(join(A, B), join(A.dense(), B.dense()), 1e-9), name
    for name, change in UNARY.items():
        assert same(change(A), change(A.dense()), 1e-10), name
    assert torch.equal(A <= B, A.dense() <= B.dense())
    torch.testing.assert_close(similarity(A, B), similarity(A.dense(), B.dense()))
    assert torch.allclose(A.quota, A.dense().quota)


@pytest.mark.parametrize("name", BINARY)
def test_batches_whose_members_give_different_ranks(name: str) -> None:
    """Same spans, overlapping spans, disjoint spans: 2, 3 and 4 directions after OR."""
    U = rotation(0, 11)
    A = Conceptor.from_spectrum(U[:, :2].expand(3, 11, 2), normal(1, 3, 2).sigmoid())
    spans = torch.stack([U[:, :2] @ rotation(2, 2), U[:, 1:3], U[:, 2:4]])
    B = Conceptor.from_spectrum(spans, normal(3, 3, 2).sigmoid())
    found = BINARY[name](A, B)
    twice = BINARY[name](found, ~A)
    for i in range(3):
        assert same(found[i], BINARY[name](A[i], B[i]), 1e-10)
        assert same(found[i], BINARY[name](A[i].dense(), B[i].dense()), 1e-9)
        assert same(twice[i], BINARY[name](found[i], ~A[i]), 1e-9)  # padded goes on as well
        torch.testing.assert_close(found.quota[i], found[i].matrix().trace() / 11)
    assert torch.equal(found <= twice, torch.stack([found[i] <= twice[i] for i in range(3)]))
    rho = torch.stack([similarity(found[i].dense(), twice[i].dense()) for i in range(3)])
    torch.testing.assert_close(similarity(found, twice), rho)


def test_the_same_directions_are_not_counted_twice() -> None:
    C = hold(0, 50, 4).adapt(0.5)
    turned = Conceptor.from_spectrum(
        C.spectrum[0][:, [3, 0, 2, 1]] * -1, C.spectrum[1][[3, 0, 2, 1]]
    )
    assert (C | turned).rank == int((C.spectrum[1] > 0).sum())
    assert same(C | turned, C.adapt(math.sqrt(2)), 1e-12)


@pytest.mark.parametrize("angle", [1e-1, 1e-3, 1e-5, 1e-7, 1e-9])
def test_nearly_parallel_directions(angle: float) -> None:
    """OR of soft lines at a small angle stays accurate to rounding over the angle."""
    e = torch.eye(30, 2, dtype=torch.float64)
    v = e[:, :1] * math.cos(angle) + e[:, 1:] * math.sin(angle)
    A, B = (Conceptor.from_spectrum(u, torch.tensor([0.5]).double()) for u in (e[:, :1], v))
    Q = e[:, :1] @ e[:, :1].mT + v @ v.mT
    assert same(A | B, Q @ torch.linalg.inv(eye(30) + Q), 1e-9)


# --- truncation --------------------------------------------------------------------------


@given(conceptors(1), st.integers(0, 7))
def test_truncation_error_is_what_is_stated(one: list[Conceptor], rank: int) -> None:
    """Not only a bound: it is attained."""
    C = one[0]
    rank = min(rank, C.rank)
    stated = C.truncation_errors()
    assert stated.shape == (C.rank + 1,)
    D = C.factored(rank=rank)
    assert D.rank == rank
    assert distance(C, D) == pytest.approx(float(stated[rank]), abs=1e-10)
    assert bool((stated[:-1] >= stated[1:]).all())
    assert float(stated[-1]) == 0


@given(conceptors(1), st.sampled_from([0.0, 1e-3, 0.1, 0.4, 1.0]))
def test_tolerance_is_kept_with_as_few_directions_as_possible(
    one: list[Conceptor], tolerance: float
) -> None:
    C = one[0]
    D = C.factored(tolerance=tolerance)
    assert distance(C, D) <= tolerance + 1e-10
    if D.rank:
        assert float(C.truncation_errors()[D.rank - 1]) > tolerance
    assert same(C.factored(), C, 1e-12)
    assert same(C.factored().dense(), C, 1e-12)


@given(conceptors(1), st.integers(0, 7))
def test_truncation_is_the_best_there_is(one: list[Conceptor], rank: int) -> None:
    """Eckart-Young: no matrix of that rank, or identity plus such, comes nearer."""
    C = one[0].dense()
    rank = min(rank, C.dim)
    s = C.singular_values
    low = float(s[rank]) if rank < C.dim else 0.0
    high = float(1 - s[C.dim - 1 - rank]) if rank < C.dim else 0.0
    assert distance(C, C.factored(rank=rank)) == pytest.approx(min(low, high), abs=1e-9)


def test_the_rest_is_chosen_for_each_rank() -> None:
    """Nothing kept: I is nearer (0.7) than 0 (1.0). Two kept: with rest 0 it is 0.3."""
    s = torch.tensor([1, 0.9, 0.3, 0.3, 0.3, 0.3]).double()
    C = Conceptor.from_spectrum(rotation(0, 6), s)
    assert C.truncation_errors().tolist() == pytest.approx([0.7, 0.7, 0.3, 0.3, 0.1, 0, 0])
    assert C.factored(rank=0).spectrum[2] == 1
    assert C.factored(rank=2).spectrum[2] == 0
    assert C.factored(tolerance=0.31).rank == 2


def test_truncation_in_batches() -> None:
    s = torch.tensor([[0.9, 0.5, 0.1, 0.0], [0.3, 0.2, 0.0, 0.0]]).double()
    C = Conceptor.from_spectrum(torch.stack([rotation(0, 4), rotation(1, 4)]), s, aperture=2.0)
    wanted = torch.tensor([[0.9, 0.5, 0.1, 0, 0], [0.3, 0.2, 0, 0, 0]]).double()
    torch.testing.assert_close(C.truncation_errors(), wanted)
    assert C.factored().rank == 3
    assert C.factored(tolerance=0.2).rank == 2
    assert C.factored(rank=1).aperture is not None
    for i in range(2):
        error = distance(C[i], C.factored(rank=1)[i])
        assert error == pytest.approx(float(wanted[i, 1]), abs=1e-12)


def test_a_rank_above_what_is_held_changes_nothing() -> None:
    C = hold(0, 9, 3)
    assert same(C.factored(rank=5), C, 1e-15)
    assert C.factored(rank=5).rank == 3
    assert C.dense().factored(rank=9).rank == 9


# --- memory ------------------------------------------------------------------------------

LARGE = 20_000


def large(seed: int, dtype: torch.dtype, *batch: int) -> Conceptor:
    U = torch.linalg.qr(normal(seed, *batch, LARGE, 8)).Q
    return Conceptor.from_spectrum(U.to(dtype), normal(seed, *batch, 8).sigmoid().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_operation_makes_a_square_matrix(dtype: torch.dtype) -> None:
    """At d = 20 000 one would take 3.2 GB; nothing above a few d r numbers may appear."""
    A, B = large(0, dtype), large(1, dtype)
    x = normal(2, 4, LARGE).to(dtype)
    made: dict[str, Callable[[], object]] = {
        "not": lambda: ~A,
        "or": lambda: A | B,
        "and": lambda: A & B,
        "mixed": lambda: (~A & B) | ~(A | ~B),
        "not-and-not": lambda: ~A & ~B,
        "project": lambda: A @ x,
        "project not": lambda: ~A @ x,
        "evidence": lambda: A.evidence(x),
        "similarity": lambda: similarity(A, ~B),
        "order": lambda: A <= (A | B),
        "order not": lambda: ~A <= ~(A & B),
        "adapt": lambda: A.adapt(2.0),
        "harden": A.harden,
        "truncate": lambda: A.factored(rank=3).truncation_errors(),
        "read": lambda: (A.singular_values, A.quota, A.spectrum, repr(A)),
        "states": lambda: Conceptor.from_states(x, 2.0),
        "spectrum": lambda: Conceptor.from_spectrum(*A.spectrum[:2]),
        "to": lambda: A.to(torch.float64).to(torch.float32),
        "zero": lambda: Conceptor.zero(LARGE, dtype=dtype) | A,
    }
    for name, work in made.items():
        assert largest_tensor(work) <= 8 * LARGE * 8, name


def test_the_eye_on_memory_sees() -> None:
    """The test above would notice: the matrix itself, and a hidden product of the same size."""
    C = Conceptor.from_spectrum(torch.eye(300, 2), torch.ones(2))
    assert largest_tensor(C.matrix) >= 300 * 300
    assert largest_tensor(lambda: (C.dense() | C.dense()).quota) >= 300 * 300
    assert largest_tensor(lambda: ~C) < 3000


def exact(A: Conceptor, B: Conceptor, join: Binary) -> tuple[Tensor, Conceptor]:
    """`join` in the 16 dimensions that two conceptors span, and the basis of those."""
    U, V = A.spectrum[0].double(), B.spectrum[0].double()
    basis = torch.linalg.qr(torch.cat([U, V], 1)).Q

    def small(C: Conceptor) -> Conceptor:
        W, s, rest = C.spectrum
        W, s = basis.mT @ W.double(), s.double()
        return Conceptor.from_matrix((W * (s - rest)) @ W.mT + rest * eye(16))

    return basis, join(small(A), small(B))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["or", "and", "or-not", "nor"])
def test_large_results_are_right(name: str, dtype: torch.dtype) -> None:
    A, B = large(0, dtype), large(1, dtype)
    # Let them share four directions.
    shared = torch.cat([A.spectrum[0][:, :4], B.spectrum[0][:, :4]], 1)
    B = Conceptor.from_spectrum(torch.linalg.qr(shared).Q, B.spectrum[1])
    found = BINARY[name](A, B)
    basis, wanted = exact(A, B, BINARY[name])
    inside = basis.mT @ (found @ basis.mT.to(dtype).contiguous()).mT.double()
    assert distance(inside, wanted.matrix()) < (1e-4 if dtype == torch.float32 else 1e-9)
    x = normal(9, LARGE)
    x = (x - basis @ (basis.mT @ x)).to(dtype)
    torch.testing.assert_close(found @ x, found.spectrum[2] * x, atol=1e-4, rtol=0)


def test_batches_of_large_conceptors() -> None:
    A, B = large(0, torch.float32, 3), large(1, torch.float32)
    assert largest_tensor(lambda: A | B) <= 8 * LARGE * 8 * 3
    joined = A | B
    assert joined.rank == 16
    assert bool((joined >= A).all())
    torch.testing.assert_close(joined[1].quota, (A[1] | B).quota)


def test_two_hundred_ors_stay_orthonormal_and_close_to_float64() -> None:
    """Rounding of float32 must not pile up over a long sequence of tasks."""
    base = normal(0, 40, 500)
    one, two = Conceptor.zero(500, dtype=torch.float32), Conceptor.zero(500)
    for seed in range(200):
        rows = (normal(seed, 4, 40) @ base).float()
        one = one | Conceptor.from_states(rows, 0.02)
        two = two | Conceptor.from_states(rows.double(), 0.02)
    U = one.spectrum[0]
    assert float((U.mT @ U - torch.eye(one.rank)).abs().max()) < 2e-6
    assert one.rank == 40
    assert distance(one, two) < 3e-5


@pytest.mark.parametrize("rank", [5, 40], ids=["factored", "dense"])
def test_large_odds_survive_or_in_float32(rank: int) -> None:
    """Odds of 10⁴ are 1 - s = 10⁻⁴: rounding of the directions (10⁻⁷) must not reach them."""
    U = rotation(0, 40)[:, :rank].float()
    C = Conceptor.from_spectrum(U, torch.full((rank,), 0.5)).adapt(100.0)
    turned = Conceptor.from_spectrum(U @ rotation(1, rank).float(), C.harden().spectrum[1])
    for both in (C | C.to(torch.float32), (C | C) & turned):
        back = both.adapt(0.01).singular_values[:rank]
        torch.testing.assert_close(back, torch.full((rank,), 2 / 3), atol=2e-6, rtol=0)
