"""Weights that several layers share, and blocks that several optimizers or groups split."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from conceptors import Shield
from helpers import eye
from layers.cases import Draw


class Twins(nn.Module):
    """Two linear layers that share their weight or their bias."""

    def __init__(self, shared: str) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(9, 9), nn.Linear(9, 9)
        setattr(self.b, shared, getattr(self.a, shared))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh())  # type: ignore[no-any-return]


def test_each_user_of_a_shared_weight_has_its_own_bias_unit() -> None:
    model, x = Twins("weight").double(), Draw(0, batch=7).x(9)
    claimed = Shield(model, 2.0).remember(x).conceptors()["a"]
    hidden = model.a(x).tanh().detach()
    units = eye(2)[:, None].expand(2, 7, 2)
    rows = torch.cat([torch.stack([x, hidden]), units], -1).flatten(0, 1)
    odds = 2.0**2 * rows.mT @ rows / 14
    expected = odds @ torch.linalg.inv(odds + eye(11))
    torch.testing.assert_close(claimed.matrix()[0], expected, rtol=0, atol=1e-10)
