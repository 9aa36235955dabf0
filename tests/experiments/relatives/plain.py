"""Learning with a task's own parts, written plainly: one seed, one hidden layer, [W | b] each."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from conceptors.experiments.methods.lesson import Stream
from experiments.learners import CPU

STEPS, BATCH = 6, 10
LIKE: dict[str, Any] = {"steps": STEPS, "batch": BATCH, "loss": "softmax", "activation": "tanh"}


class Own(NamedTuple):
    """(W U) (S - start) Uᵀ is added to the weights."""

    basis: Tensor  # U [d, r]
    mix: Tensor  # S [r, r]
    start: Tensor


def effective(w: list[Tensor], own: list[list[Own]]) -> list[Tensor]:
    """The weights of both layers with a task's own parts."""
    return [W + sum(W @ U @ (S - start) @ U.T for U, S, start in parts) for W, parts in zip(w, own)]


def entering(w: list[Tensor], x: Tensor) -> list[Tensor]:
    """Rows of both layers, with the 1 of the bias."""
    one = torch.ones(len(x), 1)
    first = torch.cat([x, one], 1)
    return [first, torch.cat([torch.tanh(first @ w[0].T), one], 1)]


def loss(w: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(entering(w, x)[1] @ w[1].T, y)


def trained(
    found: Any, k: int, w: list[Tensor], own: list[list[Own]], claimed: list[Tensor]
) -> tuple[list[Tensor], list[list[Own]]]:
    """Weights and own parts after a task; steps of weights keep out of what is claimed `[d, d]`."""
    split, rate = found.scenario.tasks[k].train, found.settings.rate
    stream = Stream(split.sizes(), found.seeds, k, BATCH, STEPS, CPU)
    for step in range(STEPS):
        x, y = (part[0] for part in split.take(stream.places(step)))
        w = [W.detach().requires_grad_() for W in w]
        own = [[o._replace(mix=o.mix.detach().requires_grad_()) for o in parts] for parts in own]
        mixes = [o.mix for parts in own for o in parts]
        found_gradients = torch.autograd.grad(loss(effective(w, own), x, y), [*w, *mixes])
        rest = iter(found_gradients[len(w) :])
        with torch.no_grad():
            w = [W - rate * (g - g @ A) for W, g, A in zip(w, found_gradients, claimed)]
            own = [[o._replace(mix=o.mix - rate * next(rest)) for o in parts] for parts in own]
    return w, own


def matrices(found: Any) -> list[Tensor]:
    """[W | b] of a learner's layers, of its first seed."""
    return [own.matrix()[0].clone() for own in found.layers]


def used_matrices(found: Any, k: int) -> list[Tensor]:
    """The same as task k uses them."""
    with found.weights_of(k):
        return matrices(found)
