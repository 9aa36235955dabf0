"""How exactly products are computed, and that the user's settings come back."""

from typing import Any

import pytest
import torch

from conceptors._internal.precision import exactly, passes_in


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
