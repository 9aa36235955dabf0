"""A sequence of tasks, and how one is learned: the loop that the README shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from conceptors import LayerInputs, Readout, Shield

Part = tuple[Tensor, Tensor]  # inputs and targets
Kind = Literal["plain", "shield", "readout", "joint"]
_AT_ONCE = 1000  # samples


@dataclass(frozen=True)
class Lesson:
    """One task. With `outputs`, it has a head of its own: these columns of the model's output."""

    train: Part
    validation: Part
    test: Part
    outputs: Tensor | None = field(default=None, kw_only=True)

    def to(self, device: torch.device) -> Lesson:
        parts = (self.train, self.validation, self.test)
        outputs = None if self.outputs is None else self.outputs.to(device)
        return Lesson(*((x.to(device), y.to(device)) for x, y in parts), outputs=outputs)

    def head(self, out: Tensor, y: Tensor) -> Part:
        """Outputs and targets of this task's head."""
        if self.outputs is None:
            return out, y
        return out[:, self.outputs], torch.searchsorted(self.outputs, y)


@dataclass(frozen=True)
class Sequence:
    """Tasks, a network, and the usual loss: cross-entropy, or squared error for regression.

    `target`: what `Shield(model)` is to reach with the first optimizer, in percent.
    `grows`: before every later task the model's `grow(number of new classes)` is called, and a new
    optimizer is made.
    """

    name: str
    target: float
    lessons: Callable[[], list[Lesson]]
    model: Callable[[], nn.Module]
    epochs: int = 20
    batch: int = 32
    regression: bool = False
    grows: bool = False
    pretrained: bool = False

    def loss(self, lesson: Lesson, out: Tensor, y: Tensor) -> Tensor:
        if self.regression:
            return functional.mse_loss(out, y)
        return functional.cross_entropy(*lesson.head(out, y))

    @torch.no_grad()
    def score(self, model: nn.Module, lesson: Lesson, part: Part) -> float:
        """Accuracy in percent, or 100 R²; 0 if the outputs are not finite."""
        training = model.training
        model.eval()
        out = torch.cat([model(x) for x in part[0].split(_AT_ONCE)])
        model.train(training)
        if not bool(out.isfinite().all()):
            return 0.0
        if self.regression:
            spread = (part[1] - part[1].mean()).square().mean()
            return 100 * float(1 - (out - part[1]).square().mean() / spread)
        out, y = lesson.head(out, part[1])
        return 100 * float((out.argmax(1) == y).float().mean())


@dataclass(frozen=True)
class Rate:
    """An optimizer as people make it, with a learning rate."""

    name: str
    rate: float

    def make(self, parameters: Any) -> Optimizer:
        if self.name == "SGD":
            return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)
        return torch.optim.AdamW(parameters, lr=self.rate)


def learn(
    sequence: Sequence,
    kind: Kind,
    optimizer_of: Rate,
    *,
    seed: int,
    device: torch.device,
    aperture: Any = "auto",
) -> dict[str, list[float]]:
    """Final scores of all tasks on validation and test data, and on test data right after each.

    A "readout" is of a network that learns the first task and is fixed then: of its input and of
    what enters its layers.
    """
    lessons = [lesson.to(device) for lesson in sequence.lessons()]
    torch.manual_seed(seed)
    model = sequence.model().to(device)
    if kind == "joint" and sequence.grows:
        _grow(model, lessons[1:])
    shield = Shield(model, aperture, warn_at_quota=1.0) if kind == "shield" else None
    answers = Answers(model, lessons[0].train[0][:2]).to(device) if kind == "readout" else model
    optimizer = optimizer_of.make(model.parameters())
    if shield is not None:
        shield.guard(optimizer)
    first = []  # scores right after each task
    for number, task in enumerate([lessons] if kind == "joint" else [[one] for one in lessons]):
        fixed = kind == "readout" and number > 0
        if number and sequence.grows and not fixed:
            _grow(model, task)
            optimizer = optimizer_of.make(model.parameters())
            if shield is not None:
                shield.guard(optimizer)
        good = fixed or _train(sequence, model, optimizer, task, device)
        if not good:  # diverged: whatever it says is chance
            return {part: [0.0] * len(lessons) for part in ("validation", "test", "learned")}
        if isinstance(answers, Answers):
            answers.learn(task[0].train)
        first += [sequence.score(answers, lesson, lesson.test) for lesson in task]
        if shield is not None:
            shield.remember(task[0].train[0])
    return {
        "validation": [sequence.score(answers, one, one.validation) for one in lessons],
        "test": [sequence.score(answers, one, one.test) for one in lessons],
        "learned": first,
    }


class Answers(nn.Module):
    """What a readout of a network's input and layers says, with nothing chosen."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        super().__init__()
        self.reader = LayerInputs(model, example)
        count = min(max(500, 8 * self.reader.widths.get("input", 0)), 2000)
        self.readout = Readout(self.reader.out_features, self.reader.lift(count))

    def learn(self, part: Part) -> None:
        """Add a task up."""
        self.readout.learn_from(self.reader, zip(*(both.split(_AT_ONCE) for both in part)))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.readout(self.reader(x))
        return found


def _train(
    sequence: Sequence,
    model: nn.Module,
    optimizer: Optimizer,
    lessons: list[Lesson],
    device: torch.device,
) -> bool:
    """Train on some tasks mixed; whether the loss stayed finite."""
    x = torch.cat([lesson.train[0] for lesson in lessons])
    y = torch.cat([lesson.train[1] for lesson in lessons])
    owner = torch.cat([torch.full((len(one.train[1]),), i) for i, one in enumerate(lessons)])
    owner = owner.to(device)
    heads = lessons[0].outputs is not None and len(lessons) > 1
    model.train()
    loss = torch.zeros(())
    for _ in range(sequence.epochs):
        for batch in torch.randperm(len(x)).to(device).split(sequence.batch):
            optimizer.zero_grad()
            out = model(x[batch])
            if heads:
                whose = owner[batch]
                losses = [
                    sequence.loss(lesson, out[whose == i], y[batch][whose == i])
                    * (whose == i).float().mean()
                    for i, lesson in enumerate(lessons)
                    if bool((whose == i).any())
                ]
                loss = torch.stack(losses).sum()
            else:
                loss = sequence.loss(lessons[0], out, y[batch])
            loss.backward()
            optimizer.step()
    return math.isfinite(float(loss.detach()))


def _grow(model: Any, lessons: list[Lesson]) -> None:
    for lesson in lessons:
        model.grow(len(lesson.train[1].unique()))
