"""How exactly products are computed, and that the user's settings come back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conceptors.shield.step.numbers import rounded, sharp_product, split_bf16, split_tf32

from conceptors._internal.precision import exactly, passes_in


def test_numbers_are_sums_of_shorter_ones() -> None:
    torch.manual_seed(0)
    x = torch.randn(1000, 1) * torch.logspace(-20, 20, 1000)[:, None]
    high, low = split_tf32(x).split(1, -1)
    assert torch.equal(high + low, x)
    assert bool((low.abs() <= 2**-10 * x.abs()).all())
    assert torch.equal(rounded(high), high)
    torch.testing.assert_close(split_bf16(x).float().sum(1), x[:, 0], rtol=2**-22, atol=0)
    weights, factor = torch.randn(8, 50), torch.randn(50, 4)
    product = sharp_product(weights, split_tf32(factor))
    torch.testing.assert_close(product, weights @ factor, rtol=0, atol=1e-5)
    half = sharp_product(weights.bfloat16(), split_tf32(factor))
    torch.testing.assert_close(half, weights.bfloat16().float() @ factor, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("wanted", "expected"), [("exact", "ieee"), ("tf32", "tf32")])
def test_passes_have_a_precision_in_which_projections_are_exact(wanted: Any, expected: str) -> None:
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("before torch 2.9")
    before = matmul.fp32_precision, cudnn.conv.fp32_precision
    with passes_in(wanted):
        assert (matmul.fp32_precision, cudnn.conv.fp32_precision) == (expected, expected)
        with exactly(gradients=True):
            assert torch.is_grad_enabled()
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == expected
        with exactly():
            assert not torch.is_grad_enabled()
    assert (matmul.fp32_precision, cudnn.conv.fp32_precision) == before
