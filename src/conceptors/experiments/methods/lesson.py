"""One task as it is learned: the order of samples, and the training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors._internal.cuda_graph import CudaGraph
from conceptors.experiments.networks import MLP, AlexNet

if TYPE_CHECKING:
    from conceptors.experiments.methods.base import Learner


class Lesson:
    """The training steps of a learner in one task; `loss` is that of the last step."""

    def __init__(self, learner: Learner, number: int) -> None:
        s, seed, device = learner.settings, learner.scenario.seed, learner.device
        split, self._parameters = learner.training_split(number), learner.trained()
        optimizer = learner.new_optimizer((number and s.later_rate) or s.rate)
        order = sample_order(len(split), s.batch * learner.steps(number), number, seed)
        self._order, self._done = order.view(-1, s.batch).to(device), 0
        self._places = places = self._order[0].long()
        self._mean = RunningMean(self._parameters, s.average) if s.average else None
        self.loss = loss = torch.zeros((), device=device)

        def step() -> None:  # a method would keep the optimizer after its task: a reference cycle
            x, y = split.take(places)
            if s.mirror or s.shift:
                x = varied(x, s.mirror, s.shift)
            losses = learner.loss(learner.forward(x), y, number)
            optimizer.zero_grad(set_to_none=True)
            (losses.mean() if s.gradient == "mean" else losses.sum()).backward()
            learner.gradients(number)
            if s.gradient == "unit":
                to_unit_length(learner.model)
            optimizer.step()
            loss.copy_(losses.detach().mean())

        is_fixed = isinstance(learner.model, (MLP, AlexNet))  # every step is the same work
        can_replay = learner.replay and device.type == "cuda" and is_fixed
        # recorded in the precision of the passes around it
        self._run = CudaGraph(step, exact=False) if can_replay else step

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
        """Whether the loss or the squares of the weights are no usable numbers."""
        squares = [parameter.square().sum() for parameter in self._parameters]
        is_finite = bool(torch.stack(squares).sum().isfinite())
        return not (is_finite and abs(float(self.loss)) < 1e19)


class RunningMean:
    """mean ← keep · mean + (1 - keep) · w per step; at first the plain mean of all weights so far.

    Weights of neighbouring steps hardly differ, so they are added once in `every` steps, a fiftieth
    of the 1 / (1 - keep) steps that count.
    """

    def __init__(self, parameters: list[nn.Parameter], keep: float) -> None:
        self.every, self._count = max(1, round(0.02 / (1 - keep))), 0
        self._least_share = 1 - keep**self.every
        self._pairs = [(parameter.detach().clone(), parameter) for parameter in parameters]

    @torch.no_grad()
    def add(self) -> None:
        """Add the current weights."""
        self._count += 1
        for mean, parameter in self._pairs:
            mean.lerp_(parameter, max(1 / self._count, self._least_share))

    @torch.no_grad()
    def use(self) -> None:
        """Set the weights to their mean, if there is one."""
        for mean, parameter in self._pairs if self._count else ():
            parameter.copy_(mean)


def sample_order(size: int, count: int, task: int, seed: int) -> Tensor:
    """Places `[count]` of samples in the order of training, shuffled for every pass."""
    generator = torch.Generator().manual_seed(104_729 * (task + 1) + seed)
    passes = [torch.randperm(size, generator=generator) for _ in range(-(-count // size))]
    return torch.cat(passes)[:count].to(torch.int32)


def varied(x: Tensor, mirror: bool, shift: int) -> Tensor:
    """Mirror and shift images `[batch, c, h, w]` at random; pixels from outside are zero."""
    count, _, height, width = x.shape
    rows, columns = torch.randint(2 * shift + 1, (2, count), device=x.device)
    if mirror:
        is_mirrored = torch.rand(count, 1, 1, 1, device=x.device) < 0.5
        x = torch.where(is_mirrored, x.flip(-1), x)
    windows = functional.pad(x, [shift] * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(count, device=x.device), :, rows, columns]


def to_unit_length(model: nn.Module) -> None:
    """Scale each neuron's incoming gradient, bias included, to length 1.

    Gradients shorter than 1e-6 are multiplied by 1e6 only, as TensorFlow's l2_normalize does.
    Otherwise an output that is never wanted would be driven to exactly 0 and never learn again.
    """
    for layer in model.modules():
        parameters = [getattr(layer, name, None) for name in ("weight", "bias")]
        gradients = [p.grad for p in parameters if p is not None and p.grad is not None]
        if gradients and gradients[0].ndim > 1:
            squares = [g.reshape(len(g), -1).square().sum(1) for g in gradients]
            length = torch.stack(squares).sum(0).clamp_min(1e-12).sqrt()
            for gradient in gradients:
                gradient.div_(length.reshape(-1, *[1] * (gradient.ndim - 1)))
