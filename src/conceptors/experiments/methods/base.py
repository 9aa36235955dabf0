"""What a method is: a learner that gets one task after another.

`Learner` is plain training; every method is a small subclass that changes a few of its steps:
`start_task`, `gradients`, `end_task`, `weights_for_test`. Parameters have a leading dimension of
seeds (1 for networks that are not stacked), so that all seeds learn at once without meeting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors._internal.precision import passes_in
from conceptors.experiments.events import Event, Progress
from conceptors.experiments.methods.clock import Clock
from conceptors.experiments.methods.lesson import Lesson
from conceptors.experiments.methods.norms import hold_statistics
from conceptors.experiments.methods.settings import OwnSettings, Settings
from conceptors.experiments.networks import AlexNet, StackedMLP
from conceptors.experiments.scenarios import Scenario, Split

_AT_ONCE = 5000  # samples of a seed that are tested together
_WITH_NORMS = 1000  # the same where norms use statistics of the batch

Parts = list[tuple[Tensor, Tensor]]


class Learner:
    """Plain training: learns every task, forgets the last one."""

    name: ClassVar[str] = "sgd"
    about: ClassVar[str] = "plain training, forgets"
    settings_type: ClassVar[type[OwnSettings]] = Settings
    needs_task_label: ClassVar[bool] = False  # when testing, also with one head for all tasks
    stackable: ClassVar[bool] = True  # whether seeds can be learned at once without meeting
    replay = True  # whether to use a recording where that is possible

    def __init__(
        self, scenario: Scenario, settings: OwnSettings, device: torch.device, progress: Progress
    ) -> None:
        self.scenario = scenario
        self.settings: Any = settings
        self.device = device
        self.progress = progress
        self.seeds = scenario.seeds
        self.model = self.network().to(device)
        self.extras: list[dict[str, Any]] = [{} for _ in self.seeds]  # into the results
        self.pace = torch.ones(len(self.seeds), device=device)  # 0: has come to its end
        self._places_by_sizes: dict[tuple[int, ...], Parts] = {}  # of splits
        self.diverged: dict[int, str] = {}  # place of a seed -> where that was; the others go on
        self.clock = Clock(device)

    # --- what methods change --------------------------------------------------------------

    def network(self) -> nn.Module:
        """What learns: inputs `[seeds, batch, ...]` to outputs `[seeds, batch, classes]`."""
        return build_network(self.scenario, self.settings)

    def start_task(self, number: int) -> None:
        """Before the first step of a task."""

    def training_split(self, number: int) -> Split:
        """What is trained on."""
        return self.scenario.tasks[number].train

    def trained(self) -> list[nn.Parameter]:
        """What the optimizer of a task changes, asked once the task has started."""
        return list(self.model.parameters())

    def forward(self, x: Tensor) -> Tensor:
        """Outputs while training."""
        out: Tensor = self.model(x)
        return out

    def outputs(self, x: Tensor, number: int) -> Tensor:
        """Outputs while testing on samples of a task."""
        out: Tensor = self.model(x)
        return out

    def gradients(self, number: int) -> None:
        """After the backward pass: change p.grad where the method asks for it."""

    def guarded(self, optimizer: torch.optim.Optimizer, finish: Callable[[], None]) -> None:
        """Before the first step of a task: `finish` is to be called on gradients as they are used,
        between `gradients` and the step.
        """
        optimizer.register_step_pre_hook(lambda *_: finish())

    def drifts(self) -> bool:
        """Whether weights also move without a gradient."""
        return bool(self.settings.momentum > 0 or self.settings.decay > 0)

    def pulled(self) -> bool:
        """Whether each step also draws weights back, by its rate."""
        return False

    def end_task(self, number: int) -> None:
        """After the last step of a task."""

    def stored_numbers(self) -> list[int] | None:
        """How many numbers each seed keeps between tasks, besides weights; None if not counted."""
        return None

    @contextmanager
    def weights_for_test(self) -> Iterator[None]:
        """The weights that are tested, where they are not those that are trained."""
        yield

    # --- training -------------------------------------------------------------------------

    def learn(self, number: int) -> list[dict[str, Any]]:
        """Learn a task; its history, one a seed. Seeds that fail at it are in `diverged`."""
        with self.passes():
            return self._learn(number)

    def each(self, name: str, groups: int | None = None) -> Tensor:
        """A number among the settings for every seed `[seeds]`, or for all their groups."""
        value = torch.as_tensor(
            getattr(self.settings, name), dtype=torch.float64, device=self.device
        )
        by_seed = value.expand(len(self.seeds))
        return by_seed.repeat_interleave((groups or len(self.seeds)) // len(self.seeds))

    def passes(self) -> AbstractContextManager[None]:
        """In which precision a GPU computes outputs and gradients."""
        wanted = self.settings.precision
        if wanted == "auto":
            wanted = "tf32" if isinstance(self.model, AlexNet) else "exact"
        return passes_in(wanted)

    def _learn(self, number: int) -> list[dict[str, Any]]:
        s = self.settings
        self.start_task(number)
        lesson, total = Lesson(self, number), self.steps(number)
        schedule = lesson.schedule
        checks = [0] * len(self.seeds)  # up to where each seed stopped
        history: dict[str, list[Any]] = {"step": [], "loss": [], "validation": []}
        self.model.train()
        for step in range(1, total + 1):
            lesson.step(step - 1)
            if number:  # in the first task there is nothing to keep yet
                self.clock.go(step)
            if step % s.check_every == 0 or step == total:
                self.clock.stop(step)
                held_out = self.scenario.tasks[number].validation
                found, loss = self.evaluate(held_out, number, s.validation)
                history["step"].append(step)
                history["loss"].append(lesson.latest.tolist())
                history["validation"].append(found.tolist())
                self.progress(self._steps_done(number, step, total, float(found.mean())))
                checks = [n + going for n, going in zip(checks, schedule.going())]
                schedule.check(found, loss, self.threshold(number))
                if not any(schedule.going()):
                    break
        lesson.finish()
        self._set_aside(lesson, number, loss)
        del lesson, schedule  # a shield would make its optimizer ready for steps that never come
        if len(self.diverged) < len(self.seeds):
            if s.norms == "first" and number == 0:
                hold_statistics(self, number)
            self.end_task(number)
            for extra, count in zip(self.extras, self.stored_numbers() or ()):
                extra["stored_numbers"] = count
        return [
            {
                "task": number,
                "step": history["step"][: checks[i]],
                # JSON has no NaN: the loss of a run that diverged is null
                "loss": [
                    row[i] if math.isfinite(row[i]) else None
                    for row in history["loss"][: checks[i]]
                ],
                "validation": [row[i] for row in history["validation"][: checks[i]]],
            }
            for i in range(len(self.seeds))
        ]

    def _set_aside(self, lesson: Lesson, number: int, loss: Tensor) -> None:
        """Seeds that diverged go back to where they began: no NaN enters what the others share."""
        s = self.settings
        if not bool(loss.square().isfinite().all()):  # the task may end with better weights
            _, loss = self.evaluate(self.scenario.tasks[number].validation, number, s.validation)
        lost = lesson.lost() | lesson.schedule.never_learned() | ~loss.square().isfinite()
        if not bool(lost.any()):
            return
        lesson.take_back(lost)
        for place in lost.nonzero().flatten().tolist():
            self.diverged.setdefault(place, f"task {number + 1} of {len(self.scenario.tasks)}")

    def _steps_done(self, number: int, step: int, steps: int, validation: float) -> Event:
        tasks = len(self.scenario.tasks)
        return Event(
            "step", self.name, tuple(self.seeds), number + 1, tasks, step, steps, validation
        )

    def replayable(self) -> bool:
        """Whether a step is the same work every time, so that a GPU can replay a recording."""
        known = isinstance(self.model, (StackedMLP, AlexNet))
        return self.replay and self.device.type == "cuda" and known

    def threshold(self, number: int) -> float:
        s = self.settings
        if s.stop_above <= 0:
            return math.inf
        if number and s.stop_above_later > 0:
            return float(min(s.stop_above, s.stop_above_later))
        return float(s.stop_above)

    def steps(self, number: int) -> int:
        """Steps of a task: the same for all seeds, whatever their share of the classes."""
        s = self.settings
        if s.steps > 0:
            return int(s.steps)
        total = sum(sum(t.train.sizes()) for t in self.scenario.tasks) / len(self.seeds)
        share = total / len(self.scenario.tasks)
        return int(max(1, round(s.epochs * share / s.batch)))

    def loss(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        """Loss of every sample `[seeds, batch]`."""
        kind = self.settings.loss
        outputs = self.own_head(outputs, y, number)
        if kind == "softmax":
            return functional.cross_entropy(
                outputs.flatten(0, 1), y.flatten(), reduction="none"
            ).reshape(y.shape)
        wanted = functional.one_hot(y, outputs.shape[-1]).to(outputs)
        if kind == "bce":
            return functional.binary_cross_entropy_with_logits(
                outputs, wanted, reduction="none"
            ).sum(-1)
        return 0.5 * (torch.sigmoid(outputs) - wanted).square().sum(-1)

    def own_head(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        """Outputs in training on samples of labels y: those of this task's head."""
        return only(outputs, self.trained_classes(number))

    def trained_classes(self, number: int) -> Tensor | None:
        """Classes `[seeds, classes]` whose outputs a task trains, None for all."""
        return self.scenario.tasks[number].classes if self.scenario.heads else None

    def masked(self, outputs: Tensor, number: int) -> Tensor:
        """With one head per task, the outputs of other heads count for nothing."""
        return only(outputs, self.scenario.tasks[number].classes if self.scenario.heads else None)

    # --- testing --------------------------------------------------------------------------

    def accuracy(self, split: Split, number: int, limit: int | None = None) -> Tensor:
        """Percent right of every seed `[seeds]`."""
        return self.evaluate(split, number, limit)[0]

    def evaluate(
        self, split: Split, number: int, limit: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Percent right and mean loss of every seed `[seeds]`, on samples in their own order.

        The order counts where norms use statistics of the batch. Where a GPU computes passes of
        fully connected networks in TF32, they are tested in float16, in half the time: its numbers
        have as many digits. Seeds whose outputs it cannot hold are tested in TF32.
        """
        halved = self.tests_in_half()
        right, loss, finite = self._evaluate(split, number, limit, halved)
        if halved and not bool(finite.all()):
            again = self._evaluate(split, number, limit, False)
            right, loss = (torch.where(finite, *pair) for pair in zip((right, loss), again))
        return right, loss

    def tests_in_half(self) -> bool:
        """Whether float16 may stand for TF32."""
        wanted = self.settings.precision == "tf32" and isinstance(self.model, StackedMLP)
        return wanted and self.device.type == "cuda"

    @torch.no_grad()
    def _evaluate(
        self, split: Split, number: int, limit: int | None, halved: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """And whether all outputs of a seed are finite `[seeds]`."""
        sizes = [size if limit is None else min(size, limit) for size in split.sizes()]
        right, loss, lost = sums = torch.zeros(3, len(self.seeds), device=self.device)
        self.model.eval()
        for places, counted in self._places(tuple(sizes)):
            x, y = split.take(places)
            half = torch.autocast(self.device.type, torch.float16, enabled=halved)
            with self.passes(), half:
                outputs = self.outputs(x, number)
            outputs = outputs.float() if halved else outputs
            lost += (~outputs.isfinite()).sum((1, 2))
            right += ((self.masked(outputs, number).argmax(-1) == y) & counted).sum(1)
            loss += self.loss(outputs, y, number).masked_fill(~counted, 0.0).sum(1)
        self.model.train()
        right, loss, lost = sums.cpu()
        counts = torch.tensor(sizes)
        return 100 * right / counts, loss / counts, lost == 0

    def _places(self, sizes: tuple[int, ...]) -> Parts:
        """Which samples are tested together `[seeds, n]`, and which of them count."""
        if sizes not in self._places_by_sizes:
            at_once = _AT_ONCE if isinstance(self.model, StackedMLP) else _WITH_NORMS
            self._places_by_sizes[sizes] = even_parts(sizes, at_once, self.device)
        return self._places_by_sizes[sizes]

    def test(self, count: int | None = None) -> Tensor:
        """Test accuracy on all tasks, or the first ones, `[seeds, tasks]`."""
        tasks = self.scenario.tasks[:count]
        with self.weights_for_test():
            found = [self.accuracy(task.test, k) for k, task in enumerate(tasks)]
        return torch.stack(found, 1)


def even_parts(sizes: tuple[int, ...], at_once: int, device: torch.device) -> Parts:
    """Places `[seeds, n]` of all samples, in as many parts as needed, and which of them count.

    Parts are equally long to one sample, as norms fail on one that is left over; seeds of fewer
    samples see their last one again.
    """
    longest, ends = max(sizes, default=0), torch.tensor(sizes)[:, None]
    parts = math.ceil(longest / at_once)
    found = []
    for part in torch.arange(longest).tensor_split(parts) if parts else ():
        places, counted = part.minimum(ends - 1).clamp_min(0), part < ends
        found.append((places.to(device), counted.to(device)))
    return found


def only(outputs: Tensor, classes: Tensor | None, least: float = -1e4) -> Tensor:
    """Outputs `[seeds, n, classes]` of some classes `[seeds, classes]`; others are the least."""
    return outputs if classes is None else outputs.masked_fill(~classes[:, None], least)


def build_network(scenario: Scenario, settings: Settings) -> nn.Module:
    """The network for a scenario: fully connected, or AlexNet for images in colour."""
    if len(scenario.inputs) == 3:
        if settings.shift >= min(scenario.inputs[1:]):
            raise ValueError(
                f"shift={settings.shift} leaves nothing of images of {scenario.inputs[1:]} pixels; "
                f"use a few pixels"
            )
        return AlexNet(scenario.classes, scenario.seeds, settings.dropout)
    s = settings
    for name in ("smooth", "local"):
        if getattr(s, name) and scenario.image is None:
            raise ValueError(
                f"{name}={getattr(s, name):g} needs images, which inputs of {scenario.name} are "
                f"not; use {name}=0"
            )
    if s.mirror or s.shift:
        raise ValueError(
            f"mirror={s.mirror}, shift={s.shift} are for images in colour, which inputs of "
            f"{scenario.name} are not; leave them out"
        )
    sizes = [math.prod(scenario.inputs), *s.sizes, scenario.classes]
    made = StackedMLP(sizes, s.activation, s.init, s.scale, scenario.seeds, bias=s.bias)
    if s.smooth and scenario.image is not None:
        made.smooth(scenario.image, s.smooth)
    if s.local and scenario.image is not None:
        made.look_closely(scenario.image, s.local, scenario.seeds)
    return made
