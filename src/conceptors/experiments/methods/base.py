"""What a method is: a learner that gets one task after another.

`Learner` is plain training. Every method is a small subclass that changes a few of its steps:
`start_task`, `gradients`, `end_task`, `outputs`.
"""

import math
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors._internal.cuda_graph import CudaGraph
from conceptors._internal.precision import passes_in
from conceptors.experiments.events import Event, Progress
from conceptors.experiments.methods.settings import OwnSettings, Settings
from conceptors.experiments.methods.training import (
    RunningMean,
    sample_order,
    to_unit_length,
    varied,
)
from conceptors.experiments.networks import MLP, AlexNet, build_network
from conceptors.experiments.scenarios.base import Scenario, Split

_AT_ONCE = 5000  # samples that are tested together
_WITH_NORMS = 1000  # the same where norms use statistics of the batch
_LARGEST_LOSS = 1e19  # above it, training has diverged


class Learner:
    """Plain training, which forgets.

    Attributes:
        model: the network that learns.
        extras: values that a method adds to its run in the results.
        diverged: whether training of the last task diverged.
    """

    name: ClassVar[str] = "sgd"
    about: ClassVar[str] = "plain training, which forgets"
    settings_type: ClassVar[type[OwnSettings]] = Settings
    replay = True  # whether a GPU may record the training step once and replay it

    def __init__(
        self, scenario: Scenario, settings: OwnSettings, device: torch.device, progress: Progress
    ) -> None:
        self.scenario, self.device, self.progress = scenario, device, progress
        self.settings: Any = settings
        self.extras: dict[str, Any] = {}
        self.diverged = False
        self.model = self.network().to(device)

    # --- what methods change --------------------------------------------------------------

    def network(self) -> nn.Module:
        """Create the network: inputs `[batch, ...]` to outputs `[batch, classes]`."""
        return build_network(self.scenario, self.settings)

    def start_task(self, number: int) -> None:
        """Prepare for a task, before its first step."""

    def training_split(self, number: int) -> Split:
        """The samples that a task is trained on."""
        return self.scenario.tasks[number].train

    def trained(self) -> list[nn.Parameter]:
        """Parameters that the optimizer of a task changes, asked once the task has started."""
        return list(self.model.parameters())

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs in training."""
        out: Tensor = self.model(x)
        return out

    def outputs(self, x: Tensor, number: int) -> Tensor:
        """Compute outputs in tests on samples of a task."""
        out: Tensor = self.model(x)
        return out

    def new_optimizer(self, rate: float) -> torch.optim.Optimizer:
        """Create the optimizer of a task, once the task has started."""
        return torch.optim.SGD(self.trained(), lr=rate)

    def gradients(self, number: int) -> None:
        """Change the gradients `p.grad`, after the backward pass."""

    def end_task(self, number: int) -> None:
        """Finish a task, after its last step."""

    def steps(self, number: int) -> int:
        """Steps of a task: the same for all tasks, whatever their share of the data."""
        s, tasks = self.settings, self.scenario.tasks
        share = sum(len(task.train) for task in tasks) / len(tasks)
        return int(s.steps or max(1, round(s.epochs * share / s.batch)))

    def loss(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        """Loss of every sample `[batch]`."""
        outputs = only(outputs, self.trained_classes(number))
        if self.settings.loss == "softmax":
            return functional.cross_entropy(outputs, y, reduction="none")
        wanted = functional.one_hot(y, outputs.shape[-1]).to(outputs)
        if self.settings.loss == "mse":
            return 0.5 * (torch.sigmoid(outputs) - wanted).square().sum(1)
        losses = functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
        return losses.sum(1)

    def trained_classes(self, number: int) -> Tensor | None:
        """Classes `[classes]` whose outputs a task trains, None for all."""
        return self.head_classes(number)

    def head_classes(self, number: int) -> Tensor | None:
        """Classes `[classes]` of a task's head, None if all tasks share one head."""
        return self.scenario.tasks[number].classes if self.scenario.heads else None

    def masked(self, outputs: Tensor, number: int) -> Tensor:
        """Outputs in tests; with one head per task, only this head's, however low they are."""
        return only(outputs, self.head_classes(number), -torch.inf)

    # --- training -------------------------------------------------------------------------

    def learn(self, number: int) -> None:
        """Learn a task; `diverged` is set if that failed."""
        with self.passes():
            self.start_task(number)
            self.diverged = not self._train(number)
            if not self.diverged:
                self.end_task(number)

    def _train(self, number: int) -> bool:
        """Do the steps of a task; return whether loss and weights remain usable numbers."""
        s, seed, task = self.settings, self.scenario.seed, self.scenario.tasks[number]
        split, parameters, total = self.training_split(number), self.trained(), self.steps(number)
        optimizer = self.new_optimizer((number and s.later_rate) or s.rate)
        order = sample_order(len(split), s.batch * total, number, seed)
        order = order.view(-1, s.batch).to(self.device)
        places, last_loss = order[0].long(), torch.zeros((), device=self.device)
        mean = RunningMean(parameters, s.average) if s.average else None
        threshold = (number and s.stop_above_later) or s.stop_above or math.inf

        def step() -> None:
            x, y = split.take(places)
            if s.mirror or s.shift:
                x = varied(x, s.mirror, s.shift)
            losses = self.loss(self.forward(x), y, number)
            optimizer.zero_grad(set_to_none=True)
            (losses.mean() if s.gradient == "mean" else losses.sum()).backward()
            self.gradients(number)
            if s.gradient == "unit":
                to_unit_length(self.model)
            optimizer.step()
            last_loss.copy_(losses.detach().mean())

        def is_finite() -> bool:
            squares = torch.stack([p.detach().square().sum() for p in parameters])
            return bool(squares.sum().isfinite()) and abs(float(last_loss)) < _LARGEST_LOSS

        is_fixed = isinstance(self.model, (MLP, AlexNet))  # every step is the same work
        can_replay = self.replay and self.device.type == "cuda" and is_fixed
        # recorded in the precision of the passes around it
        run_step = CudaGraph(step, exact=False) if can_replay else step
        self.model.train()
        for done in range(1, total + 1):
            places.copy_(order[done - 1])
            run_step()
            if mean is not None and done % mean.every == 0:
                mean.add()
            if done % s.check_every == 0 or done == total:
                accuracy = self.accuracy(task.validation, number, s.validation)
                at = f"{self.name}, seed {seed}, task {number + 1} of {len(self.scenario.tasks)}"
                text = f"{at}: step {done} of {total}, {accuracy:.1f} % on validation data"
                self.progress(Event(text, is_step=True))
                if accuracy > threshold or not is_finite():
                    break
        if mean is not None:
            mean.use()
        return is_finite()

    def passes(self) -> AbstractContextManager[None]:
        """Set the precision in which a GPU computes outputs and gradients."""
        return passes_in("tf32" if isinstance(self.model, AlexNet) else "exact")

    # --- testing --------------------------------------------------------------------------

    def test(self, count: int | None = None, part: str = "test") -> list[float]:
        """Accuracy in percent on all tasks, or the first `count`; `part` may be "validation"."""
        splits = [getattr(task, part) for task in self.scenario.tasks[:count]]
        return [self.accuracy(split, number) for number, split in enumerate(splits)]

    @torch.no_grad()
    def accuracy(self, split: Split, number: int, limit: int | None = None) -> float:
        """Percent correct on samples of a task, or on its first `limit`, in their own order.

        The order counts where norms use statistics of the batch. Batches are equally long to one
        sample, because norms fail on a single one.
        """
        count, correct = min(len(split), limit or len(split)), torch.zeros((), device=self.device)
        at_once = _WITH_NORMS if isinstance(self.model, AlexNet) else _AT_ONCE
        self.model.eval()
        for places in torch.arange(count, device=self.device).tensor_split(-(-count // at_once)):
            x, y = split.take(places)
            with self.passes():
                outputs = self.outputs(x, number)
            correct += (self.masked(outputs, number).argmax(1) == y).sum()
        self.model.train()
        return 100 * float(correct) / count


def only(outputs: Tensor, classes: Tensor | None, least: float = -1e4) -> Tensor:
    """Outputs `[n, classes]` of some classes `[classes]`; the others are set to the least value."""
    return outputs if classes is None else outputs.masked_fill(~classes, least)
