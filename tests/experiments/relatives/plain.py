"""Learning with per-task parameters, written plainly: one hidden layer, [W | b] each."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from conceptors.experiments.methods.lesson import sample_order

STEPS, BATCH = 6, 10
LIKE: dict[str, Any] = {"steps": STEPS, "batch": BATCH, "loss": "softmax", "activation": "tanh"}


class Own(NamedTuple):
    """(W U) D Uᵀ is added to the weights."""

    basis: Tensor  # U [d, r]
    mix: Tensor  # D [r, r]


def own(basis: Tensor) -> Own:
    return Own(basis, torch.zeros(basis.shape[1], basis.shape[1]))


def effective(w: list[Tensor], parts: list[list[Own]]) -> list[Tensor]:
    """The weights of both layers with a task's own parts."""
    return [W + sum(W @ U @ D @ U.T for U, D in own) for W, own in zip(w, parts)]


def with_unit(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1)], 1)


def entering(w: list[Tensor], x: Tensor) -> list[Tensor]:
    """Rows of both layers, with the 1 of the bias."""
    first = with_unit(x)
    return [first, with_unit(torch.tanh(first @ w[0].T))]


def loss(w: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(entering(w, x)[1] @ w[1].T, y)


def trained(
    learner: Any, k: int, w: list[Tensor], parts: list[list[Own]], claimed: list[Tensor]
) -> tuple[list[Tensor], list[list[Own]]]:
    """Weights and own parts after a task; steps of weights keep out of what is claimed `[d, d]`."""
    split, rate = learner.scenario.tasks[k].train, learner.settings.rate
    for places in sample_order(len(split), STEPS * BATCH, k, learner.scenario.seed).split(BATCH):
        x, y = split.take(places.long())
        w = [W.detach().requires_grad_() for W in w]
        parts = [[o._replace(mix=o.mix.detach().requires_grad_()) for o in own] for own in parts]
        mixes = [o.mix for own in parts for o in own]
        gradients = torch.autograd.grad(loss(effective(w, parts), x, y), [*w, *mixes])
        of_mixes = iter(gradients[len(w) :])
        with torch.no_grad():
            w = [W - rate * (g - g @ A) for W, g, A in zip(w, gradients, claimed)]
            parts = [[o._replace(mix=o.mix - rate * next(of_mixes)) for o in own] for own in parts]
    return w, parts


def matrices(learner: Any) -> list[Tensor]:
    """[W | b] of a learner's layers."""
    return [layer.matrix().detach().clone() for layer in learner.layers]


def used_matrices(learner: Any, k: int) -> list[Tensor]:
    """The same as task k uses them."""
    own = {part.layer.name: part.parameters() for part in learner.parts[k]}
    return [
        torch.cat(
            [p.reshape(len(p), -1) for p in own.get(layer.name, layer.parameters).values()], 1
        )
        for layer in learner.layers
    ]
