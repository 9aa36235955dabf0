"""Split numbers into sums of shorter ones, which tensor cores multiply exactly."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from conceptors._internal.precision import tensor_cores

_LOW_BITS = ~((1 << 13) - 1)  # TF32 stores the first 10 of 23 bits of the mantissa


def rounded(x: Tensor) -> Tensor:
    """Round x to numbers that TF32 represents exactly; x - rounded(x) has 13 bits."""
    return (x.view(torch.int32) & _LOW_BITS).view(torch.float32)


def split_tf32(x: Tensor) -> Tensor:
    """Return [high | low] with x = high + low, two numbers that TF32 represents."""
    high = rounded(x)
    return torch.cat([high, x - high], -1)


def sharp_product(x: Tensor, factor: Tensor) -> Tensor:
    """Compute x @ (high + low) for a factor [high | low], to about float32's precision.

    Adds three products of TF32 numbers: high high, high low and low high. Half precision has no
    low part.
    """
    rank = factor.shape[-1] // 2
    high = rounded(x) if x.dtype == torch.float32 else x.float()
    with tensor_cores():
        both = high @ factor
        product = both[..., :rank] + both[..., rank:]
        if x.dtype == torch.float32:
            product += (x - high) @ factor[..., :rank]
    return product


def split_bf16(x: Tensor) -> Tensor:
    """Return [high | middle | low] in bfloat16, which have 24 bits together."""
    high = x.bfloat16()
    middle = (x - high.float()).bfloat16()
    low = (x - high.float() - middle.float()).bfloat16()
    return torch.cat([high, middle, low], -1)


@cache
def widens(device: torch.device) -> bool:
    """Whether products of bfloat16 matrices can return float32 (torch 2.8 and later)."""
    wide: Any = torch.mm
    x = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    try:
        return bool(wide(x, x, out_dtype=torch.float32).dtype == torch.float32)
    except (TypeError, RuntimeError):
        return False
