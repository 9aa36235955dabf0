"""One table of layers, for the contract and for the protection tests."""

from typing import Any

import pytest
from torch import nn

from layers import feedforward, recognised, sequences
from layers.case import Case, Draw
from layers.references import Inputs, flat

__all__ = ["BY_NAME", "CASES", "REMARKS", "Case", "Draw", "Inputs", "flat", "run"]

CASES: list[Case] = [
    *feedforward.linear_cases(),
    *feedforward.conv_cases(),
    *feedforward.embedding_cases(),
    *feedforward.norm_cases(),
    *recognised.recognised_cases(),
    *sequences.attention_cases(),
    *sequences.recurrent_cases(),
    *sequences.cell_cases(),
    *sequences.composite_cases(),
]
BY_NAME = {case.name: case for case in CASES}

REMARKS = [  # that torch makes on its own ways
    pytest.mark.filterwarnings(f"ignore:{start}")
    for start in (
        "Using padding='same' with even kernel",
        "LSTM with projections is not supported with oneDNN",
        "The PyTorch API of nested tensors is in prototype",
        "Sparse invariant checks are implicitly disabled",
    )
]


def run(layer: nn.Module, inputs: Inputs) -> Any:
    return layer(*inputs.args, **inputs.kwargs)
