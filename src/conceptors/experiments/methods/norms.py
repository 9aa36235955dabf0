"""Statistics of norms, measured once and held: what is said of an image is then its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from conceptors.experiments.stacked import StackedBatchNorm

if TYPE_CHECKING:
    from conceptors.experiments.methods.base import Learner

_MOST = 4000  # samples of a seed that are looked at
_AT_ONCE = 1000


@torch.no_grad()
def hold_statistics(learner: Learner, number: int) -> None:
    """From here on, norms use mean and variance `[seeds, c]` of a task's training samples.

    Norm after norm, each with a pass of its own: later ones see what earlier ones give from now on.
    """
    training = learner.model.training
    learner.model.eval()
    for norm in learner.model.modules():
        if isinstance(norm, StackedBatchNorm):
            norm.held = _measured(norm, learner, number)
    learner.model.train(training)


def _measured(norm: StackedBatchNorm, learner: Learner, number: int) -> tuple[Tensor, Tensor]:
    found: list[tuple[Tensor, Tensor]] = []

    def note(norm: Any, inputs: tuple[Tensor, ...]) -> None:
        found.append(norm.statistics(inputs[0]))

    hook = norm.register_forward_pre_hook(note)
    try:
        sizes = []
        for x in _batches(learner, number):
            learner.model(x)
            sizes.append(x.shape[1])
    finally:
        hook.remove()
    shares = torch.tensor(sizes, device=learner.device).double()[:, None, None] / sum(sizes)
    means, variances = (torch.stack(parts).double() for parts in zip(*found))  # [parts, seeds, c]
    mean = (shares * means).sum(0)
    variance = (shares * (variances + (means - mean).square())).sum(0)
    return mean.to(found[0][0]), variance.to(found[0][0])


def _batches(learner: Learner, number: int) -> Iterator[Tensor]:
    """Training inputs `[seeds, n, ...]`, drawn by each seed for itself, as many for every seed."""
    split = learner.scenario.tasks[number].train
    drawn = []
    for size, seed in zip(split.sizes(), learner.seeds):
        generator = torch.Generator().manual_seed(179_424_673 * (number + 1) + seed)
        drawn.append(torch.randperm(size, generator=generator)[: min(_MOST, *split.sizes())])
    places = torch.stack(drawn).to(learner.device)
    for part in places.chunk(-(-places.shape[1] // _AT_ONCE), 1):  # equally long: none is alone
        yield split.take(part)[0]
