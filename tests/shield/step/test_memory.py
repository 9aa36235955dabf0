"""Weights and gradients as matrices, in place wherever memory allows."""

from __future__ import annotations

import torch
from torch import nn

from conceptors.shield.step.memory import both, in_place, memory_of
from shield.step.common import sites


def test_memory_order() -> None:
    torch.manual_seed(0)
    weight = torch.randn(5, 4, 3, 2)
    for tensor in (weight, weight.to(memory_format=torch.channels_last)):
        found = in_place(tensor[None])
        assert found is not None
        block, columns = found
        assert block.data_ptr() == tensor.data_ptr()
        torch.testing.assert_close(block[0], tensor.flatten(1)[:, columns], rtol=0, atol=0)
    assert in_place(weight.transpose(0, 1)[None]) is None


def test_what_has_no_view_in_place_is_copied_and_put_back() -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(6, 4, 2)
    (site,) = sites(layer).values()
    memory = memory_of(site, site.parameters, site.read, site.write)
    assert memory.is_copy
    (block,) = memory.load()
    torch.testing.assert_close(block, site.matrix(site.parameters), rtol=0, atol=0)
    before = [p.detach().clone() for p in layer.parameters()]
    block.add_(1.0)
    assert all(torch.equal(p, q) for p, q in zip(layer.parameters(), before))
    memory.store()
    assert all(torch.equal(p, q + 1) for p, q in zip(layer.parameters(), before))
    layer.weight.data.zero_()
    memory.load()
    assert not block[..., :-1].any()


def test_gradients_in_another_order_of_memory_are_matched_column_by_column() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 5, 3, bias=False)
    (site,) = sites(layer).values()
    gradient = torch.randn(5, 4, 3, 3).to(memory_format=torch.channels_last)
    weights, gradients = both(site, site.parameters, lambda _: gradient)
    assert torch.equal(weights.columns[0], gradients.columns[0])
    torch.testing.assert_close(gradients.load()[0][0], gradient.flatten(1), rtol=0, atol=0)
    torch.testing.assert_close(weights.load()[0][0], layer.weight.data.flatten(1), rtol=0, atol=0)
