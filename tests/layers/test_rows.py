"""Rows in pieces and in samples, and parameters that no rows enter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import conceptors.shield.remember.moments
from conceptors import Shield
from conceptors.layers import conv
from conceptors.shield.blocks import scan
from helpers import largest_tensor
from layers.cases import BY_NAME, CASES, REMARKS, Case, Draw, Inputs
from layers.feedforward import channels_last
from layers.probe import captured, close, joined, moments, sites_of

pytestmark = REMARKS

CONVOLUTIONS = [case for case in CASES if case.name.startswith(("conv", "transposed"))]

# --- patches in pieces -------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 40])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: case.name)
def test_patches_in_pieces_are_the_same(
    case: Case, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, inputs = case.build(), case.inputs(Draw(0))
    whole = captured(layer, inputs)[""]
    monkeypatch.setattr(conv, "_CHUNK", chunk)
    pieces = captured(layer, inputs)[""]
    assert len(pieces) > len(whole) == 1
    torch.testing.assert_close(joined(pieces), joined(whole), rtol=0, atol=0)


@pytest.mark.parametrize("cap", [None, 300])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 2, 5, padding=2),
        nn.Conv2d(4, 4, 5, padding="same", groups=2, padding_mode="circular"),
        nn.ConvTranspose2d(4, 2, 5, padding=2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_memory_does_not_grow_with_the_patches(
    layer: nn.Module, cap: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "_CHUNK", 2**13)
    monkeypatch.setattr(conceptors.shield.remember.moments, "_ENOUGH", 100)
    x = Draw(0, torch.float32).x(4, 64, 64)
    patches = x[:, :1].numel() * 4 * 25
    largest = largest_tensor(lambda: moments(layer, [Inputs((x,), {})], cap=cap))
    assert largest < 1.3 * x.numel() < patches / 19  # the padded image is the largest


# --- samples of the rows -----------------------------------------------------------------

SAMPLED = [
    case for case in CASES if case.rows and "embedding" not in case.name and "bag" not in case.name
]


@pytest.mark.parametrize("case", SAMPLED, ids=lambda case: case.name)
def test_samples_are_capped_and_reproducible(case: Case) -> None:
    layer, inputs = case.build(), case.inputs(Draw(0))
    whole = captured(layer, inputs)
    first, again, other = (captured(layer, inputs, cap=3, seed=s) for s in (5, 5, 6))
    different = False
    for name, parts in whole.items():
        count = joined(parts).shape[1]
        assert joined(first[name]).shape[1] == min(count, 3)
        assert all(part.weight == max(1.0, count / 3) for part in first[name])
        torch.testing.assert_close(joined(first[name]), joined(again[name]), rtol=0, atol=0)
        different |= not torch.equal(joined(first[name]), joined(other[name]))
        rows = joined(parts)[0]
        near = torch.cdist(joined(first[name])[0], rows).amin(-1)
        assert near.max() < 1e-6  # they are rows of the call
    assert different or all(joined(parts).shape[1] <= 3 for parts in whole.values())


@pytest.mark.parametrize(
    "name", ["linear-3d", "conv2d-groups", "transposed1d", "layer-norm", "attention", "lstm"]
)
def test_samples_are_fair(name: str) -> None:
    """Over many seeds the mean of the sums is the sum over all rows, within sampling error."""
    case = BY_NAME[name]
    layer, inputs = case.build(), case.inputs(Draw(0))
    seeds = 400

    def sums(cap: int | None, seed: int) -> dict[str, Tensor]:
        found = {}
        for block, parts in captured(layer, inputs, cap, seed).items():
            weight = torch.tensor([part.weight for part in parts])[0]
            found[block] = weight * joined(parts).mT @ joined(parts)
        return found

    wanted = sums(None, 0)
    drawn = [sums(3, seed) for seed in range(seeds)]
    for block, total in wanted.items():
        each = torch.stack([d[block] for d in drawn])
        error = (each.mean(0) - total).norm()
        spread = (each.var(0).sum() / seeds).sqrt()  # the norm's standard error
        assert error < 3 * spread
        assert spread < 0.1 * total.norm()


def test_samples_of_a_batch_differ_from_those_of_the_next() -> None:
    case = BY_NAME["linear-3d"]
    layer, inputs = case.build(), case.inputs(Draw(0))
    one = moments(layer, [inputs], cap=3)["Linear"]
    two = moments(layer, [inputs, inputs], cap=3)["Linear"]
    assert two.weight == 2 * one.weight == 24
    assert not torch.allclose(two.correlation(), one.correlation())
    assert one.correlation()[0, -1, -1] == 1.0  # of the bias unit: sums and counts go together


# --- what cannot be seen as blocks -------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.LazyLinear(3), "not initialised yet: run a batch through the model first"),
        (nn.Linear(3, 2, dtype=torch.complex64), "complex numbers"),
        (channels_last(nn.LayerNorm((2, 3, 2, 2))), "make it contiguous"),
        (nn.Embedding(5, 3, max_norm=1.0), r"Embedding, shape \[5, 3\]"),
        (nn.Bilinear(2, 3, 4), r"Bilinear, shape \[4, 2, 3\]"),
        (nn.utils.parametrizations.orthogonal(nn.Linear(3, 2)), "weight.original"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_parameters_that_are_no_block_are_told(layer: nn.Module, why: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)cannot be shielded:.*{why}"):
        Shield(nn.Sequential(layer, nn.Linear(2, 2)))
    assert list(Shield(nn.Sequential(layer, nn.Linear(2, 2)), exclude=["0"]).quota()) == ["1"]


def test_lazy_layers_are_shielded_once_they_have_a_shape() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyConv1d(2, 1))
    shield = Shield(nn.Sequential(model, nn.Linear(4, 2)), unsupported="ignore")
    assert list(shield.quota()) == ["1"]
    model(torch.zeros(5, 4, 6))
    assert list(shield.refresh().quota()) == ["0.0", "0.1", "1"]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_weight_without_numbers_needs_no_shield() -> None:
    model = nn.Sequential(nn.Linear(3, 0), nn.Linear(0, 2, bias=False), nn.Linear(2, 2))
    assert list(sites_of(model)) == ["2"]
    assert not scan(model, (), ()).unsupported
    with_bias = nn.Sequential(nn.Linear(3, 0), nn.Linear(0, 2))
    found = moments(with_bias, [Inputs((torch.ones(4, 3),), {})])
    assert found["1"].correlation().tolist() == [[[1.0]]]


def test_the_extra_keys_of_attention_can_be_frozen() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 3, add_bias_kv=True).double()
    old, new = Draw(0).normal(3, 2, 12), Draw(1).normal(3, 2, 12)
    shield = Shield(layer, 1e4, hard=True, unsupported="freeze")
    optimizer = shield.guard(torch.optim.Adam(layer.parameters(), lr=0.05))
    shield.remember([old], feed=lambda model, x: model(x, x, x))
    before = layer(old, old, old)[0].detach()
    for _ in range(5):
        optimizer.zero_grad()
        layer(new, new, new)[0].square().sum().backward()
        optimizer.step()
    assert close(layer(old, old, old)[0].detach(), before, 1e-10)
