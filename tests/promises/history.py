"""A shielded network in training: what is drawn of it, and what can be done with it at any time."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning
from promises.architectures import Network, Plan, plan
from promises.optimizers import Recipe, recipe
from promises.parts import coin

APERTURE = 1e6


class RefusedError(Exception):
    """The shield has refused, and the message says why."""


class InterruptedStepError(Exception):
    """As Ctrl-C, in the middle of a step."""


@dataclass
class Task:
    """Data, and what the network made of it when it was remembered."""

    number: int
    batches: list[Tensor]
    targets: list[Tensor] = field(default_factory=list)
    before: Tensor | None = None  # None once it is forgotten


class History:
    """A network, its shield and its optimizers, drawn by a seed.

    `log` lists the events, `warned` the shield's warnings, `tasks` those that were remembered.
    """

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.log: list[str] = []
        self.warned: list[str] = []
        self.tasks: list[Task] = []
        self.count = self.draw.choice([2, 2, 3])  # of tasks
        self.plan: Plan = plan(seed, self.count)
        self.network: Network = self.plan.make(0)
        self.options = self._options()
        self.recipe: Recipe = recipe(self.draw, self.plan.sparse)
        self.shield: Any = None
        self.optimizers: list[Any] = []
        self.schedulers: list[Any] = []
        self.interrupting = False

    def _options(self) -> dict[str, Any]:
        """Of the shield: hard, so that nothing of what is claimed may drift."""
        draw = self.draw
        aperture: Any = APERTURE if coin(draw, 0.8) else {"entry*": APERTURE, "*": APERTURE}
        options: dict[str, Any] = {"aperture": aperture, "hard": True}
        if self.plan.strange:
            options["unsupported"] = draw.choice(["freeze", "freeze", "error"])
        if coin(draw, 0.1):
            options["increment_decay"] = 0.1
        options["keep_tasks"] = coin(draw, 0.3)
        learning = [i for i, part in enumerate(self.network.parts) if list(part.parameters())]
        if coin(draw, 0.1) and learning:
            options["freeze"] = [f"parts.{draw.choice(learning)}"]
        if learning and len(self.network.heads) == self.count and coin(draw, 0.2):
            options["exclude"] = [
                f"heads.{self.count - 1}"
            ]  # of the last task, never trained after
        return options

    def describe(self) -> str:
        lines = [f"network    {self.plan.text}", f"optimizer  {self.recipe.text}"]
        lines += [f"shield     {self.options}", f"events     {', '.join(self.log)}"]
        return "\n".join(lines + [f"warned     {message}" for message in self.warned])

    def attach(self) -> None:
        with self.asking():
            self.shield = Shield(self.network, **self.options)

    def guard(self) -> None:
        """New optimizers, guarded."""
        self.optimizers = self.recipe.make(self.network)
        for wrapped in self.optimizers:
            optimizer = getattr(wrapped, "optimizer", wrapped)
            optimizer.register_step_post_hook(self._interrupt)  # before the guard's own
            with self.asking():
                assert self.shield.guard(wrapped) is wrapped
        self.schedulers = []

    def _interrupt(self, *_: Any) -> None:
        if self.interrupting:
            self.interrupting = False
            raise InterruptedStepError

    def remember(self, task: Task) -> None:
        batches: Any = [(x, task.number) for x in task.batches]
        if coin(self.draw, 0.3):
            batches = iter(batches)
        with self.asking():
            self.shield.remember(batches, feed=lambda model, batch: model(*batch))
        task.before = self.outputs(task)
        self.tasks.append(task)

    @contextmanager
    def listening(self) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UnprotectedWarning)
            try:
                yield
            finally:
                ours = [w.message for w in caught if issubclass(w.category, UnprotectedWarning)]
                self.warned += map(str, ours)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """What the shield raises is a refusal."""
        with self.listening():
            try:
                yield
            except (ValueError, TypeError) as error:
                raise RefusedError(str(error)) from error

    def forward(self, x: Tensor, task: int) -> Tensor:
        with torch.no_grad(), evaluating(self.network):
            return self.network(x, task)  # type: ignore[no-any-return]

    def outputs(self, task: Task) -> Tensor:
        return torch.cat([self.forward(x, task.number).flatten() for x in task.batches])

    def loss_of(self, task: Task) -> float:
        wanted = torch.cat([target.flatten() for target in task.targets])
        return float((self.outputs(task) - wanted).square().mean())

    def backward(self, task: Task) -> float:
        """Gradients added up over all batches."""
        total = 0.0
        sign = -1.0 if self.recipe.maximizes else 1.0
        for x, target in zip(task.batches, task.targets):
            loss = sign * (self.network(x, task.number) - target).square().mean()
            loss.backward()
            total += float(loss.detach())
        return total

    def step(self, task: Task) -> None:
        """Of all optimizers and schedulers, with gradients that may be clipped."""
        to_none = coin(self.draw, 0.7)
        clip = "" if self.plan.sparse else self.draw.choice(["", "", "norm", "value"])

        def gradients() -> float:
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=to_none)
            loss = self.backward(task)
            if clip == "norm":
                nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
            elif clip == "value":
                nn.utils.clip_grad_value_(self.network.parameters(), 0.1)
            return loss

        with self.listening():
            if self.recipe.takes_closure:
                self.optimizers[0].step(gradients)
            else:
                gradients()
                self.step_optimizers()
        for scheduler in self.schedulers:
            scheduler.step()

    def step_optimizers(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def freeze(self) -> list[nn.Parameter]:
        """Freeze some parameters; return these."""
        modules = [m for m in [self.network.entry, *self.network.parts] if list(m.parameters())]
        if not modules:
            return []
        frozen = list(self.draw.choice(modules).parameters())
        if coin(self.draw, 0.3):
            frozen = [p for p in frozen if p.ndim == 1]
        self.log.append(f"freeze {len(frozen)} parameters")
        for p in frozen:
            p.requires_grad_(False)
        return frozen


def unfreeze(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.requires_grad_(True)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    flags = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag
