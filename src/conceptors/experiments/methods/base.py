"""What a method is: a learner that gets one task after another.

`Learner` is plain training. Every method is a small subclass that changes a few of its steps:
`start_task`, `gradients`, `end_task`, `weights_for_test`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors._internal.precision import passes_in
from conceptors.experiments.events import Event, Progress
from conceptors.experiments.methods.lesson import Lesson
from conceptors.experiments.methods.settings import OwnSettings, Settings
from conceptors.experiments.networks import AlexNet, build_network
from conceptors.experiments.scenarios import Scenario, Split

_AT_ONCE = 5000  # samples that are tested together
_WITH_NORMS = 1000  # the same where norms use statistics of the batch
_FOR_NORMS = 4000  # samples that fixed norms are measured on


class Learner:
    """Plain training, which forgets.

    Attributes:
        model: the network that learns.
        extras: values that a method adds to its run in the results.
        diverged: the task in which training diverged, in words; None if it did not.
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
        self.diverged: str | None = None
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

    def stored_numbers(self) -> int | None:
        """How many numbers are stored between tasks, besides weights; None if not counted."""
        return None

    @contextmanager
    def weights_for_test(self) -> Iterator[None]:
        """Inside, the model has the weights that are tested, if others are trained."""
        yield

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

    def learn(self, number: int) -> dict[str, Any]:
        """Learn a task and return its history; `diverged` is set if that failed."""
        with self.passes():
            return self._learn(number)

    def _learn(self, number: int) -> dict[str, Any]:
        s, task, tasks = self.settings, self.scenario.tasks[number], len(self.scenario.tasks)
        threshold = (number and s.stop_above_later) or s.stop_above or math.inf
        self.start_task(number)
        lesson, total = Lesson(self, number), self.steps(number)
        history: dict[str, Any] = {"task": number, "step": [], "loss": [], "validation": []}
        self.model.train()
        for step in range(1, total + 1):
            lesson.step()
            if step % s.check_every and step < total:
                continue
            accuracy = self.accuracy(task.validation, number, s.validation)
            loss = float(lesson.loss)
            history["step"].append(step)
            history["loss"].append(loss if math.isfinite(loss) else None)  # JSON has no NaN
            history["validation"].append(accuracy)
            text = f"step {step} of {total}, {accuracy:.1f} % on validation data"
            self.progress(Event("step", text, self.name, self.scenario.seed, number + 1, tasks))
            if accuracy > threshold or lesson.diverged():
                break
        lesson.finish()
        if lesson.diverged():
            self.diverged = f"task {number + 1} of {tasks}"
            return history
        del lesson
        if s.norms == "first" and number == 0 and isinstance(self.model, AlexNet):
            places = task.train.drawn(_FOR_NORMS, 179_424_673 + self.scenario.seed)
            parts = places.chunk(-(-len(places) // _WITH_NORMS))
            self.model.fix_norms(task.train.take(part)[0] for part in parts)
        self.end_task(number)
        if (count := self.stored_numbers()) is not None:
            self.extras["stored_numbers"] = count
        return history

    def passes(self) -> AbstractContextManager[None]:
        """Set the precision in which a GPU computes outputs and gradients."""
        return passes_in("tf32" if isinstance(self.model, AlexNet) else "exact")

    # --- testing --------------------------------------------------------------------------

    def test(self, count: int | None = None) -> list[float]:
        """Test accuracy in percent on all tasks, or on the first `count`."""
        tasks = self.scenario.tasks[:count]
        with self.weights_for_test():
            return [self.accuracy(task.test, number) for number, task in enumerate(tasks)]

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
