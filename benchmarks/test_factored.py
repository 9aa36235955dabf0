"""The factored form, d = 4096 and rank 256, against the dense form of the same conceptors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.measure import Row, duration, interleave, peak_bytes, target
from conceptors import Conceptor

OPERATIONS: dict[str, Callable[[Conceptor, Conceptor, torch.Tensor], object]] = {
    "OR": lambda A, B, x: A | B,
    "AND": lambda A, B, x: A & B,
    "AND NOT": lambda A, B, x: A & ~B,
    "NOT": lambda A, B, x: ~A,
    "adapt": lambda A, B, x: A.adapt(3.0),
    "projection": lambda A, B, x: A @ x,
    "projection of NOT": lambda A, B, x: ~A @ x,
}


def sizes(small: bool) -> tuple[int, int]:
    return (64, 4) if small else (4096, 256)


def pair(small: bool, dtype: torch.dtype) -> tuple[Conceptor, Conceptor]:
    """Two conceptors of independent directions, so that OR has the largest possible rank, 2 r."""
    dim, rank = sizes(small)
    generator = torch.Generator().manual_seed(0)

    def one() -> Conceptor:
        columns = torch.randn(dim, rank, generator=generator, dtype=torch.float64)
        values = torch.rand(rank, generator=generator, dtype=torch.float64)
        vectors = torch.linalg.qr(columns).Q.to(dtype)
        return Conceptor.from_spectrum(vectors, values.to(dtype))

    return one(), one()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_or(benchmark: Any, rows: list[Row], small: bool, dtype: torch.dtype) -> None:
    A, B = pair(small, dtype)
    dense_a, dense_b = A.dense(), B.dense()
    tolerance = 100 * math.sqrt(A.dim) * torch.finfo(dtype).eps
    assert (A | B).allclose(dense_a | dense_b, atol=tolerance)
    ours, theirs = interleave(
        benchmark, lambda: A | B, {"dense": lambda: dense_a | dense_b}, rounds=3
    )
    if benchmark.disabled:
        return
    ratio = theirs["dense"] / ours
    rows.append(
        Row(
            f"OR, {str(dtype)[6:]}",
            f"d = {A.dim}, r = {A.rank}",
            "dense OR",
            duration(ours),
            duration(theirs["dense"]),
            f"{ratio:.1f}",
            target(">= 8", ratio >= 8),
        )
    )
    assert ratio >= 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 16, 64, 256])
def test_projection(
    benchmark: Any, rows: list[Row], small: bool, n: int, dtype: torch.dtype
) -> None:
    """For many rows arithmetic allows d / (2 r) = 8; few rows are bound by memory, which allows
    the same as soon as U does not stay in the cache between its two uses, and more if it does.
    """
    C, _ = pair(small, dtype)
    matrix = C.matrix()
    x = torch.randn(n, C.dim, generator=torch.Generator().manual_seed(1), dtype=dtype)
    tolerance = 10 * torch.finfo(dtype).eps * float(x.norm())
    torch.testing.assert_close(C @ x, x @ matrix, rtol=0, atol=tolerance)
    ours, theirs = interleave(
        benchmark, lambda: C @ x, {"dense": lambda: x @ matrix}, rounds=15, repeat=10
    )
    if benchmark.disabled:
        return
    ratio = theirs["dense"] / ours
    rows.append(
        Row(
            f"projection of {n} rows, {str(dtype)[6:]}",
            f"d = {C.dim}, r = {C.rank}",
            "x @ C",
            duration(ours),
            duration(theirs["dense"]),
            f"{ratio:.1f}",
            target(">= 8", ratio >= 8),
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_peak_memory(
    benchmark: Any, rows: list[Row], small: bool, operation: str, dtype: torch.dtype
) -> None:
    """At most 4 d r numbers of the operands' dtype beyond the operands, the result included.

    Only float64 is held to it: float32 operands are widened for logic, for accuracy.
    """
    A, B = pair(small, dtype)
    x = torch.randn(A.rank, A.dim, dtype=dtype)
    run = OPERATIONS[operation]
    benchmark.pedantic(lambda: run(A, B, x), rounds=3, warmup_rounds=1)
    peak, _ = peak_bytes(lambda: run(A, B, x))
    unit = A.dim * A.rank * dtype.itemsize
    rows.append(
        Row(
            f"peak memory of {operation}, {str(dtype)[6:]}",
            f"d = {A.dim}, r = {A.rank}",
            "one dense matrix",
            f"{peak / 2**20:.1f} MiB = {peak / unit:.2f} d r",
            f"{A.dim**2 * dtype.itemsize / 2**20:.0f} MiB",
            f"{A.dim**2 * dtype.itemsize / max(peak, 1):.1f}",
            target("<= 4 d r", peak <= 4 * unit),
        )
    )
    if dtype == torch.float64 and not small:  # constant overheads count at tiny sizes
        assert peak <= 4 * unit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_meter_sees_what_is_held(benchmark: Any, dtype: torch.dtype) -> None:
    """Three squares are held at once, one in the end."""
    x = torch.ones(100, 100, dtype=dtype)
    peak, held = benchmark.pedantic(lambda: peak_bytes(lambda: (x + 1) + (x + 2)))
    assert (peak, held) == (3 * x.nbytes, x.nbytes)
