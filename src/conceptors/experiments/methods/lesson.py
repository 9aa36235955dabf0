"""One task as it is learned: which samples come when, and what a step does with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from conceptors._internal.cuda_graph import CudaGraph

if TYPE_CHECKING:
    from conceptors.experiments.methods.base import Learner


class Lesson:
    """The training steps of a learner in one task.

    Attributes:
        loss: of the last step.
    """

    def __init__(self, learner: Learner, number: int) -> None:
        s, seed, device = learner.settings, learner.scenario.seed, learner.device
        split, parameters = learner.training_split(number), learner.trained()
        rate = s.later_rate if number and s.later_rate else s.rate
        optimizer = torch.optim.SGD(parameters, lr=rate)
        order = sample_order(len(split), s.batch * learner.steps(number), number, seed)
        self._order = order.view(-1, s.batch).to(device)
        self._places = places = self._order[0].long()
        self._mean = RunningMean(parameters, s.average) if s.average else None
        self._parameters, self._done = parameters, 0
        self.loss = loss = torch.zeros((), device=device)

        # functions, not methods: a reference cycle would keep the optimizer after its task
        def finish() -> None:
            if s.gradient == "unit":
                to_unit_length(learner.model)

        def step() -> None:
            x, y = split.take(places)
            if s.mirror or s.shift:
                x = varied(x, s.mirror, s.shift)
            losses = learner.loss(learner.forward(x), y, number)
            optimizer.zero_grad(set_to_none=True)
            (losses.mean() if s.gradient == "mean" else losses.sum()).backward()
            learner.gradients(number)
            optimizer.step()
            loss.copy_(losses.detach().mean())

        learner.guarded(optimizer, finish)
        # recorded in the precision of the passes around it
        self._run = CudaGraph(step, exact=False) if learner.replayable() else step

    def step(self) -> None:
        """Do the next step."""
        self._places.copy_(self._order[self._done])
        self._run()
        self._done += 1
        if self._mean is not None and self._done % self._mean.every == 0:
            self._mean.add()

    def finish(self) -> None:
        """Set the weights that the task ends with."""
        if self._mean is not None:
            self._mean.use()

    @torch.no_grad()
    def diverged(self) -> bool:
        """Whether weights are NaN, or so large that their squares are not finite."""
        squares = [parameter.square().sum() for parameter in self._parameters]
        return not bool(torch.stack(squares).sum().isfinite())


class RunningMean:
    """mean ← keep · mean + (1 - keep) · w; at first the plain mean of all weights so far.

    `keep` is per step. Weights are added only every so many steps, a fiftieth of the
    1 / (1 - keep) that count, as those of neighbouring steps hardly differ.

    Attributes:
        every: number of steps after which weights are added.
    """

    def __init__(self, parameters: list[nn.Parameter], keep: float) -> None:
        self.every = max(1, round(0.02 / (1 - keep)))
        self._parameters = parameters
        self._means = [parameter.detach().clone() for parameter in parameters]
        self._least_share = 1 - keep**self.every
        self._count = 0

    @torch.no_grad()
    def add(self) -> None:
        """Add the present weights."""
        self._count += 1
        share = max(1 / self._count, self._least_share)
        for mean, parameter in zip(self._means, self._parameters):
            mean.lerp_(parameter, share)

    @torch.no_grad()
    def use(self) -> None:
        """Set the weights to their mean, if there is one."""
        if self._count:
            for mean, parameter in zip(self._means, self._parameters):
                parameter.copy_(mean)


def sample_order(size: int, count: int, task: int, seed: int) -> Tensor:
    """Places `[count]` of samples in the order of training: shuffled anew for every pass."""
    generator = torch.Generator().manual_seed(104_729 * (task + 1) + seed)
    passes = [torch.randperm(size, generator=generator) for _ in range(-(-count // size))]
    return torch.cat(passes)[:count].to(torch.int32)


def varied(x: Tensor, mirror: bool, shift: int) -> Tensor:
    """Images `[batch, c, h, w]`, each mirrored or not and shifted at random.

    Pixels from outside are zero: the mean of images that are standardised.
    """
    count, channels, high, wide = x.shape
    offsets = torch.randint(-shift, shift + 1, (2, count, 1), device=x.device)
    rows = torch.arange(high, device=x.device) + offsets[0]  # [batch, h]: where each comes from
    columns = torch.arange(wide, device=x.device) + offsets[1]
    if mirror:
        is_mirrored = torch.rand(count, 1, device=x.device) < 0.5
        columns = torch.where(is_mirrored, wide - 1 - columns, columns)
    row_inside, column_inside = (rows >= 0) & (rows < high), (columns >= 0) & (columns < wide)
    places = rows.clamp(0, high - 1)[:, :, None] * wide + columns.clamp(0, wide - 1)[:, None]
    pixels = x.flatten(2).gather(2, places.flatten(1)[:, None].expand(-1, channels, -1))
    return pixels.view_as(x) * (row_inside[:, None, :, None] & column_inside[:, None, None])


def to_unit_length(model: nn.Module) -> None:
    """Scale each neuron's incoming gradient, bias included, to length 1.

    Gradients shorter than 1e-6 are multiplied by 1e6 only, as TensorFlow's l2_normalize does.
    Otherwise an output that is never wanted would be driven to exactly 0 and never learn again.
    """
    for layer in model.modules():
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if not isinstance(weight, nn.Parameter) or weight.grad is None or weight.ndim < 2:
            continue
        square = weight.grad.flatten(1).square().sum(1)
        if bias is not None and bias.grad is not None:
            square = square + bias.grad.square()
        length = square.clamp_min(1e-12).sqrt()
        weight.grad /= length.reshape(-1, *[1] * (weight.ndim - 1))
        if bias is not None and bias.grad is not None:
            bias.grad /= length
