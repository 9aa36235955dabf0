"""What the machine can do at best: bandwidth of a big copy, and rates of big matrix products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from conceptors.bench.measure import side_by_side
from conceptors.bench.row import Size, pick


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second, and floating-point operations a second by precision (0 if not to be had)."""

    bandwidth: float
    float32: float
    float64: float
    tf32: float = 0.0
    bf16: float = 0.0

    @property
    def exact(self) -> float:
        """Rate of products as accurate as float32: three TF32 products make up one of them."""
        return max(self.float32, self.tf32 / 3)


@lru_cache(maxsize=4)
def measure_ceilings(device: torch.device, size: Size) -> Ceilings:
    """Measured here and now, once a process."""
    cuda = device.type == "cuda"
    numbers = pick(size, 2**16, 2**25, 2**25) if not cuda else 2**28
    width = pick(size, 64, 1024, 2048) if not cuda else 8192
    return Ceilings(
        _bandwidth(numbers, device, size),
        _rate(width, torch.float32, device, size),
        _rate(width // 2, torch.float64, device, size),
        _rate(width, torch.float32, device, size, tf32=True) if cuda else 0.0,
        _rate(width, torch.bfloat16, device, size) if cuda else 0.0,
    )


def _bandwidth(numbers: int, device: torch.device, size: Size) -> float:
    source = torch.zeros(numbers, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source), device, size)


def _rate(
    width: int, dtype: torch.dtype, device: torch.device, size: Size, tf32: bool = False
) -> float:
    a, b = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        seconds = _best(lambda: torch.mm(a, b, out=out), device, size)
    finally:
        torch.set_float32_matmul_precision(before)
    return 2 * width**3 / seconds


def _best(call: Callable[[], object], device: torch.device, size: Size) -> float:
    """Seconds of the fastest round: a ceiling is what the machine can do undisturbed."""
    rounds, block = pick(size, 2, 9, 15), pick(size, 0.0, 0.05, 0.1)
    return min(side_by_side({"": call}, device, rounds=rounds, block=block)[""].seconds)
