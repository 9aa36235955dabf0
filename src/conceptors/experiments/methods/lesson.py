"""One task as it is learned: which samples come when, and what a step does with them."""

from __future__ import annotations

import math
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

    What a seed does to its own weights never reaches another's, also when they are no numbers
    any more; `lost` and `take_back` keep that so for what comes after the steps.
    """

    def __init__(self, learner: Learner, number: int) -> None:
        s = learner.settings
        seeds, device = learner.seeds, learner.device
        split, parameters = learner.training_split(number), learner.trained()
        self._parameters, self._seeds = parameters, len(seeds)
        self._begun = [p.detach().clone() for p in parameters]
        self._stream = Stream(split.sizes(), seeds, number, s.batch, learner.steps(number), device)
        rates, later = learner.each("rate"), learner.each("later_rate")
        rates = torch.where(later > 0, later, rates) if number else rates
        rate = float(rates.max())
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=s.momentum, weight_decay=s.decay)
        self.schedule = schedule = Schedule(
            parameters, s, rate, len(seeds), device, rates / rate if rate else None
        )
        learner.pace = schedule.pace
        self._mean = RunningMean(parameters, s.average) if s.average else None
        self._places = places = self._stream.places(0).clone()
        self.latest = latest = torch.zeros(len(seeds), device=device)
        drifting = not schedule.is_even and learner.drifts()
        pulled = drifting and learner.pulled()  # at the optimizer's rate: whole steps are slowed

        def finish() -> None:
            if s.gradient == "unit":
                to_unit_length(learner.model)
            if not pulled:
                schedule.apply()

        # functions, not methods: an optimizer that is held in a circle would outlive its task
        def step() -> None:
            x, y = split.take(places)
            if s.mirror or s.shift:
                x = varied(x, s.mirror, s.shift)
            losses = learner.loss(learner.forward(x), y, number)  # [seeds, batch]
            by_seed = losses.sum(1) if s.gradient != "mean" else losses.mean(1)
            optimizer.zero_grad(set_to_none=True)
            by_seed.sum().backward()
            learner.gradients(number)
            before = [p.detach().clone() for p in parameters] if drifting else []
            optimizer.step()
            for parameter, value in zip(parameters, before):
                pace = like(schedule.pace, parameter)
                moved = value.lerp(parameter.data, pace) if pulled else parameter.data
                parameter.data.copy_(torch.where(pace > 0, moved, value))
            latest.copy_(losses.detach().mean(1))

        learner.guarded(optimizer, finish)
        # recorded in the precision of the passes around it
        self._run = CudaGraph(step, exact=False) if learner.replayable() else step

    def step(self, number: int) -> None:
        """The step of that number, from 0."""
        self._places.copy_(self._stream.places(number))
        self._run()
        if self._mean is not None and (number + 1) % self._mean.every == 0:
            self._mean.add(self.schedule.pace > 0)

    def finish(self) -> None:
        """After the last step: the weights that the task ends with."""
        self.schedule.finish()
        if self._mean is not None:
            self._mean.use()

    @torch.no_grad()
    def lost(self) -> Tensor:
        """Seeds `[seeds]` whose weights are NaN, or so large that their squares are not finite."""
        squares = [p.reshape(self._seeds, -1).square().sum(1) for p in self._parameters]
        return ~torch.stack(squares).sum(0).isfinite().cpu()

    @torch.no_grad()
    def take_back(self, seeds: Tensor) -> None:
        """Give some seeds `[seeds]` the weights that they began the task with."""
        for parameter, begun in zip(self._parameters, self._begun):
            chosen = seeds.to(parameter.device).repeat_interleave(len(parameter) // self._seeds)
            parameter.copy_(torch.where(like(chosen, parameter), begun, parameter))


class RunningMean:
    """mean ← keep · mean + (1 - keep) · w; at first the plain mean of all that was added.

    `keep` is what is kept from step to step. Weights are added every so many steps, a fiftieth of
    the 1 / (1 - keep) that count, as of steps that follow each other they hardly differ.

    Attributes:
        every: from how many steps one is added.
    """

    def __init__(self, parameters: list[nn.Parameter], keep: float) -> None:
        self.every = max(1, round(0.02 / (1 - keep)))
        self._parameters = parameters
        self._means = [p.detach().clone() for p in parameters]
        self._least = 1 - keep**self.every
        self._added: Tensor | None = None  # [seeds]

    @torch.no_grad()
    def add(self, going: Tensor) -> None:
        """The present weights, of seeds that are going `[seeds]`."""
        self._added = going.float() if self._added is None else self._added + going
        share = going * self._added.clamp_min(1).reciprocal().clamp_min(self._least)
        for mean, parameter in zip(self._means, self._parameters):
            mean.lerp_(parameter, like(share, parameter).to(parameter.dtype))

    @torch.no_grad()
    def use(self) -> None:
        """Set the weights of seeds that have a mean to it."""
        if self._added is None:
            return
        for mean, parameter in zip(self._means, self._parameters):
            parameter.copy_(torch.where(like(self._added > 0, parameter), mean, parameter))


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


def varied(x: Tensor, mirror: bool, shift: int) -> Tensor:
    """Images `[seeds, batch, c, h, w]`, each mirrored or not and shifted at random.

    What is shifted in is zero: the mean of images that are standardised. Drawn for all seeds
    together, as dropout is.
    """
    *many, channels, high, wide = x.shape
    count = math.prod(many)
    ways = torch.randint(-shift, shift + 1, (2, count, 1), device=x.device)
    rows = torch.arange(high, device=x.device) + ways[0]  # [count, h]: where each comes from
    columns = torch.arange(wide, device=x.device) + ways[1]
    if mirror:
        turned = torch.rand(count, 1, device=x.device) < 0.5
        columns = torch.where(turned, wide - 1 - columns, columns)
    inside = ((rows >= 0) & (rows < high))[:, :, None] & ((columns >= 0) & (columns < wide))[
        :, None
    ]
    places = rows.clamp(0, high - 1)[:, :, None] * wide + columns.clamp(0, wide - 1)[:, None]
    taken = x.reshape(count, channels, high * wide).gather(
        2, places.flatten(1)[:, None].expand(-1, channels, -1)
    )
    return (taken * inside.flatten(1)[:, None]).reshape(x.shape)


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
