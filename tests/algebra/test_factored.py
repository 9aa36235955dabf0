"""The factored form: equal to the dense one everywhere, bounded errors, and never d x d."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conceptors import Conceptor, similarity
from helpers import conceptors, distance, eye, largest_tensor, normal, rotation, same

UNARY: dict[str, Callable[[Conceptor], Conceptor]] = {
    "not": lambda c: ~c,
    "wider": lambda c: c.adapt(3.0),
    "widest": lambda c: c.adapt(math.inf),
    "narrowest": lambda c: c.adapt(0),
    "harden": lambda c: c.harden(0.4),
}
BINARY: dict[str, Callable[[Conceptor, Conceptor], Conceptor]] = {
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
    "or-not": lambda a, b: a | ~b,
    "and-not": lambda a, b: a & ~b,
    "nor": lambda a, b: ~a & ~b,
    "nand": lambda a, b: ~a | ~b,
}


def partial_rank(seed: int, dim: int, rank: int, rest: float = 0.0) -> Conceptor:
    """A conceptor of some directions, their singular values 0, 1 and between."""
    s = (3 * normal(seed, rank)).sigmoid()
    s[1::4], s[2::4] = 1.0, 0.0
    return Conceptor.from_spectrum(rotation(seed, dim)[:, :rank], s, rest=rest)


@given(conceptors(2), st.sampled_from(sorted(UNARY)), st.sampled_from(sorted(BINARY)))
def test_results_do_not_depend_on_the_form(pair: list[Conceptor], one: str, two: str) -> None:
    (A, B), change, join = pair, UNARY[one], BINARY[two]
    wanted = join(A.dense(), B.dense())
    for a in (A, A.dense(), A.top_k()):
        assert same(change(a), change(A.dense()), 1e-10)
        for b in (B, B.dense(), B.top_k()):
            assert same(join(a, b), wanted, 1e-8)
            assert float(similarity(a, b)) == pytest.approx(float(similarity(A, B)), abs=1e-10)
            assert bool(a <= b) == bool(A.dense() <= B.dense())


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("rest_a", [0.0, 1.0])
@pytest.mark.parametrize("rest_b", [0.0, 1.0])
def test_results_stay_factored(name: str, rest_a: float, rest_b: float) -> None:
    """In 40 dimensions, ranks 5 and 7: no operation makes more than 12 directions of them."""
    A, B = partial_rank(0, 40, 5, rest_a), partial_rank(1, 40, 7, rest_b)
    result = BINARY[name](A, B)
    assert result.is_factored
    assert result.rank <= 12
    assert same(result, BINARY[name](A.dense(), B.dense()), 1e-9)
    U, s, rest = result.spectrum
    assert distance(U.mT @ U, eye(result.rank)) < 1e-13
    assert not bool((s == rest).any())  # the rest covers these


@pytest.mark.parametrize("name", BINARY)
def test_batches_whose_members_give_different_ranks(name: str) -> None:
    """Same spans, overlapping spans, disjoint spans: 2, 3 and 4 directions after OR."""
    U = rotation(0, 11)
    A = Conceptor.from_spectrum(U[:, :2].expand(3, 11, 2), normal(1, 3, 2).sigmoid())
    spans = torch.stack([U[:, :2] @ rotation(2, 2), U[:, 1:3], U[:, 2:4]])
    B = Conceptor.from_spectrum(spans, normal(3, 3, 2).sigmoid())
    joined = BINARY[name](A, B)
    twice = BINARY[name](joined, ~A)
    for i in range(3):
        assert same(joined[i], BINARY[name](A[i].dense(), B[i].dense()), 1e-9)
        assert same(twice[i], BINARY[name](joined[i], ~A[i]), 1e-9)  # padded goes on as well
        assert same(joined[i].dense(), joined[i], 1e-13)
        torch.testing.assert_close(joined.quota[i], joined[i].matrix().trace() / 11)
    assert torch.equal(joined <= twice, torch.stack([joined[i] <= twice[i] for i in range(3)]))


# --- truncation --------------------------------------------------------------------------


@given(conceptors(1), st.integers(0, 7))
def test_the_error_of_truncation_is_the_first_dropped_value(
    one: list[Conceptor], rank: int
) -> None:
    C = one[0]
    errors = [*C.singular_values.tolist(), 0.0]
    rank = min(rank, C.dim)
    assert C.top_k(rank).rank <= rank
    assert distance(C, C.top_k(rank)) == pytest.approx(errors[rank], abs=1e-10)
    assert same(C.top_k(), C, 1e-12)
    assert C.top_k().rank == sum(error > 0 for error in errors)  # as few as possible


def test_truncation_in_batches_and_the_largest_values() -> None:
    s = torch.tensor([[0.9, 0.5, 0.1, 0.0], [0.3, 0.2, 0.0, 0.0]]).double()
    C = Conceptor.from_spectrum(torch.stack([rotation(0, 4), rotation(1, 4)]), s)
    assert C.top_k().rank == 3
    torch.testing.assert_close((~C).top_k(2).singular_values[:, 1], torch.tensor([0.9, 1]).double())


LARGE = 20_000


def large(seed: int, dtype: torch.dtype, *batch: int) -> Conceptor:
    U = torch.linalg.qr(normal(seed, *batch, LARGE, 8)).Q
    return Conceptor.from_spectrum(U.to(dtype), normal(seed, *batch, 8).sigmoid().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_operation_makes_a_square_matrix(dtype: torch.dtype) -> None:
    """At d = 20 000 one would take 3.2 GB; nothing above a few d r numbers may appear."""
    A, B, x = large(0, dtype), large(1, dtype), normal(2, 4, LARGE).to(dtype)
    operations: dict[str, Callable[[], object]] = {
        "logic": lambda: (A | B, A & B, (~A & B) | ~(A | ~B), ~A & ~B),
        "project": lambda: (A @ x, ~A @ x, A.evidence(x)),
        "compare": lambda: (similarity(A, ~B), A <= (A | B), ~A <= ~(A & B)),
        "change": lambda: (A.adapt(2.0), A.harden(), A.top_k(3)),
        "read": lambda: (A.singular_values, A.quota, A.spectrum, repr(A)),
        "create": lambda: (Conceptor.from_states(x, 2.0), Conceptor.zero(LARGE, dtype=dtype) | A),
        "to": lambda: A.to(torch.float64).to(torch.float32),
    }
    for name, work in operations.items():
        assert largest_tensor(work) <= 8 * LARGE * 8, name
    assert largest_tensor(lambda: large(0, dtype, 3) | B) <= 8 * LARGE * 8 * 3
    small = Conceptor.from_spectrum(torch.eye(300, 2), torch.ones(2))
    assert largest_tensor(lambda: (small.dense() | small.dense()).quota) >= 300 * 300  # it sees


def test_two_hundred_ors_stay_orthonormal_and_close_to_float64() -> None:
    """Rounding of float32 must not accumulate over a long sequence of tasks."""
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
