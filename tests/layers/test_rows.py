"""Rows in pieces and in samples, and parameters that no rows enter."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from conceptors import Shield
from conceptors.layers import conv
from layers.cases import BY_NAME, CASES, REMARKS, Case, Draw
from layers.feedforward import channels_last
from layers.probe import captured, joined

pytestmark = REMARKS


def twice_parametrized() -> nn.Module:
    layer = parametrizations.weight_norm(nn.Linear(3, 2))
    return parametrize.register_parametrization(layer, "weight", nn.Identity())


CONVOLUTIONS = [case for case in CASES if case.name.startswith(("conv", "transposed"))]


@pytest.mark.parametrize("chunk", [1, 40])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: case.name)
def test_patches_in_pieces_are_the_same(
    case: Case, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, inputs = case.build(), case.inputs(Draw(0))
    (whole,) = captured(layer, inputs)[""]
    monkeypatch.setattr(conv, "_CHUNK", chunk)
    pieces = captured(layer, inputs)[""]
    assert len(pieces) > 1
    assert torch.equal(joined(pieces), whole[0])


@pytest.mark.parametrize(
    "name", ["linear-3d", "conv2d-groups", "transposed1d", "layer-norm", "attention", "lstm"]
)
def test_samples_are_fair(name: str) -> None:
    """Over many seeds the mean of the sums is the sum over all rows, within sampling error."""
    case, seeds = BY_NAME[name], 300
    layer, inputs = case.build(), case.inputs(Draw(0))

    def sums(cap: int | None, seed: int) -> dict[str, Tensor]:
        parts = captured(layer, inputs, cap, seed)
        return {n: rows[0].weight * joined(rows).mT @ joined(rows) for n, rows in parts.items()}

    drawn = [sums(3, seed) for seed in range(seeds)]
    for block, total in sums(None, 0).items():
        each = torch.stack([d[block] for d in drawn])
        spread = (each.var(0).sum() / seeds).sqrt()  # the norm's standard error
        assert (each.mean(0) - total).norm() < 3 * spread < 0.35 * total.norm()


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.LazyLinear(3), "not initialised yet: run a batch through the model first"),
        (nn.Linear(3, 2, dtype=torch.complex64), "complex numbers"),
        (channels_last(nn.LayerNorm((2, 3, 2, 2))), "make it contiguous"),
        (nn.Embedding(5, 3, max_norm=1.0), r"Embedding, shape \[5, 3\]"),
        (nn.Bilinear(2, 3, 4), r"Bilinear, shape \[4, 2, 3\]"),
        (parametrizations.orthogonal(nn.Linear(3, 2)), "weight.original"),
        (twice_parametrized(), "weight.original"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_parameters_that_are_no_block_are_named(layer: nn.Module, why: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)cannot be shielded:.*{why}"):
        Shield(nn.Sequential(layer, nn.Linear(2, 2)))
    assert list(Shield(nn.Sequential(layer, nn.Linear(2, 2)), exclude=["0"]).quota()) == ["1"]


def test_lazy_layers_are_shielded_once_they_have_a_shape() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyConv1d(2, 1))
    shield = Shield(nn.Sequential(model, nn.Linear(4, 2)), unsupported="ignore")
    assert list(shield.quota()) == ["1"]
    model(torch.zeros(5, 4, 6))
    assert list(shield.refresh().quota()) == ["0.0", "0.1", "1"]
