"""One task as it is learned: which samples come when, and what a step does with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from conceptors._internal.cuda_graph import CudaGraph
from conceptors.experiments.methods.schedule import Schedule, like
from conceptors.experiments.stacked import Stacked

if TYPE_CHECKING:
    from conceptors.experiments.methods.base import Learner


class Lesson:
    """The steps of a learner in one task.

    Attributes:
        schedule: how fast each seed learns.
        latest: loss of the last step `[seeds]`.
    """

    def __init__(self, learner: Learner, number: int) -> None:
        s = learner.settings
        self._learner, self._number = learner, number
        self._split, self._parameters = learner.training_split(number), learner.trained()
        seeds, device = learner.seeds, learner.device
        steps = learner.steps(number)
        self._stream = Stream(self._split.sizes(), seeds, number, s.batch, steps, device)
        self._places = self._stream.places(0).clone()
        rate = s.later_rate if number and s.later_rate else s.rate
        self._optimizer = torch.optim.SGD(
            self._parameters, lr=rate, momentum=s.momentum, weight_decay=s.decay
        )
        self.schedule = Schedule(self._parameters, s, rate, len(seeds), device)
        learner.pace = self.schedule.pace
        self.latest = torch.zeros(len(seeds), device=device)
        self._mean = RunningMean(self._parameters, s.average, device) if s.average else None
        self._drifting = not self.schedule.is_even and learner.drifts()
        learner.guarded(self._optimizer, self._finish)
        # recorded in the precision of the passes around it
        replayed = learner.replayable()
        self._run = CudaGraph(self._step, exact=False) if replayed else self._step

    def step(self, number: int) -> None:
        """The step of that number, from 0."""
        self._places.copy_(self._stream.places(number))
        self._run()

    def _step(self) -> None:
        learner = self._learner
        x, y = self._split.take(self._places)
        losses = learner.loss(learner.forward(x), y, self._number)  # [seeds, batch]
        by_seed = losses.sum(1) if learner.settings.gradient != "mean" else losses.mean(1)
        self._optimizer.zero_grad(set_to_none=True)
        by_seed.sum().backward()
        learner.gradients(self._number)
        before = [p.detach().clone() for p in self._parameters] if self._drifting else []
        self._optimizer.step()
        for parameter, value in zip(self._parameters, before):
            going = like(self.schedule.pace, parameter) > 0
            parameter.data.copy_(torch.where(going, parameter, value))
        if self._mean is not None:
            self._mean.add(self.schedule.pace > 0)
        self.latest.copy_(losses.detach().mean(1))

    def finish(self) -> None:
        """After the last step: the weights that the task ends with."""
        self.schedule.finish()
        if self._mean is not None:
            self._mean.use()

    def _finish(self) -> None:
        """On gradients as they are used."""
        if self._learner.settings.gradient == "unit":
            to_unit_length(self._learner.model)
        self.schedule.apply()


class RunningMean:
    """mean ← keep · mean + (1 - keep) · w after every step; at first the plain mean of all."""

    def __init__(self, parameters: list[nn.Parameter], keep: float, device: torch.device) -> None:
        self._parameters = parameters
        self._means = [p.detach().clone() for p in parameters]
        self._least = 1 - keep
        self._steps = torch.zeros((), device=device)  # there, as steps may be replayed

    @torch.no_grad()
    def add(self, going: Tensor) -> None:
        """The present weights, of seeds that are going `[seeds]`."""
        self._steps += 1
        share = going / self._steps.clamp_max(1 / self._least)
        for mean, parameter in zip(self._means, self._parameters):
            mean.lerp_(parameter, like(share, parameter))

    @torch.no_grad()
    def use(self) -> None:
        """Set the weights to the mean."""
        for mean, parameter in zip(self._means, self._parameters):
            parameter.copy_(mean)


class Stream:
    """Which samples every step uses: each seed goes through its own samples in its own order."""

    def __init__(
        self,
        sizes: list[int],
        seeds: list[int],
        task: int,
        batch: int,
        steps: int,
        device: torch.device,
    ) -> None:
        needed = steps * batch
        orders = []
        for size, seed in zip(sizes, seeds):
            generator = torch.Generator().manual_seed(104_729 * (task + 1) + seed)
            rounds = -(-needed // size)
            parts = [torch.randperm(size, generator=generator) for _ in range(rounds)]
            orders.append(torch.cat(parts)[:needed].to(torch.int32))
        self._orders = torch.stack(orders).to(device)
        self._batch = batch

    def places(self, step: int) -> Tensor:
        """`[seeds, batch]`."""
        return self._orders[:, step * self._batch : (step + 1) * self._batch].long()


def to_unit_length(model: nn.Module) -> None:
    """Scale each neuron's incoming gradient, bias included, to length 1.

    Gradients shorter than 1e-6 are multiplied by 1e6 only, as TensorFlow's l2_normalize does: an
    output that is never wanted would be driven to exactly 0 otherwise, and never learn again.
    """
    for layer in model.modules():
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        lead = 2 if isinstance(layer, Stacked) else 1
        if not isinstance(weight, nn.Parameter) or weight.grad is None or weight.ndim <= lead:
            continue
        square = weight.grad.flatten(lead).square().sum(-1)
        if isinstance(bias, nn.Parameter) and bias.grad is not None:
            square = square + bias.grad.square()
        length = square.clamp_min(1e-12).sqrt()
        weight.grad /= length.reshape(*length.shape, *[1] * (weight.ndim - lead))
        if isinstance(bias, nn.Parameter) and bias.grad is not None:
            bias.grad /= length
