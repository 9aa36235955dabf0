"""A shielded SGD step is Algorithm 2 of the report, written out by hand."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield
from helpers import eye
from shield.common import blocks

DIMS = [[7, 5, 3], [6, 8, 4, 2], [5, 9, 7, 6, 3]]
RATE, DECAY, APERTURE = 0.3, 0.05, 2.0


def sigmoid_network(dims: list[int], *, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(dims):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.Sigmoid()]
    return nn.Sequential(*layers).double()


class ByHand:
    """Sections 3.2: forward, backward, collection and OR with column vectors as in the report."""

    def __init__(self, weights: list[Tensor], *, bias: bool) -> None:
        self.weights = [w.clone() for w in weights]
        self.previous = [w.clone() for w in weights]
        self.bias = bias
        self.correlations = [torch.zeros(w.shape[1], w.shape[1]).double() for w in weights]

    def with_unit(self, h: Tensor) -> Tensor:
        return torch.cat([h, torch.ones(1, h.shape[1]).double()]) if self.bias else h

    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        h, inputs = x.T, []
        for w in self.weights:
            inputs.append(self.with_unit(h))
            h = torch.sigmoid(w @ inputs[-1])
        return inputs, h

    def free(self, level: int) -> Tensor:
        total = self.correlations[level]
        identity = eye(len(total))
        claimed: Tensor = total @ torch.linalg.inv(total + APERTURE**-2 * identity)  # A = OR
        return identity - claimed

    def step(self, x: Tensor, y: Tensor) -> None:
        inputs, output = self.forward(x)
        g = (output - y.T) / x.shape[0]  # loss: half the squared error, mean over the batch
        gradients: list[Tensor] = []
        h = output
        for level in reversed(range(len(self.weights))):
            g = g * h * (1 - h)
            w, b = self.weights[level], inputs[level]
            increment = w - self.previous[level]
            gradients.insert(0, g @ b.T @ self.free(level) + 2 * DECAY * increment)
            h = b[: w.shape[1] - self.bias]
            g = (w.T @ g)[: len(h)]
        self.weights = [w - RATE * g for w, g in zip(self.weights, gradients)]

    def remember(self, x: Tensor) -> None:
        inputs, _ = self.forward(x)
        self.correlations = [
            total + b @ b.T / b.shape[1] for total, b in zip(self.correlations, inputs)
        ]
        self.previous = [w.clone() for w in self.weights]


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_shielded_sgd_step_is_algorithm_2(dims: list[int], bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model = sigmoid_network(dims, bias=bias)
    by_hand = ByHand([block[0] for block in blocks(model).values()], bias=bias)
    shield = Shield(model, aperture=APERTURE, increment_decay=DECAY)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=RATE))
    for _ in range(3):  # three tasks, so that A is an OR of two
        x, y = torch.randn(20, dims[0]).double(), torch.rand(20, dims[-1]).double()
        for _ in range(4):
            optimizer.zero_grad()
            (0.5 * (model(x) - y).square().sum() / len(x)).backward()
            optimizer.step()
            by_hand.step(x, y)
            for block, weights in zip(blocks(model).values(), by_hand.weights):
                torch.testing.assert_close(block[0], weights, rtol=1e-12, atol=1e-12)
        shield.remember([(x, y)])
        by_hand.remember(x)
    for level, quota in enumerate(shield.quota().values()):
        free = float(by_hand.free(level).diagonal().mean())
        assert quota == pytest.approx(1 - free, abs=1e-12)
