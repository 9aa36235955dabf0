"""Whole histories of a shielded network drawn by one number: tasks, and what happens in between.

Everything that was remembered must stay within 1e-8, relative, or the shield must have refused or
warned. Hard conceptors of aperture 1e6 claim the directions of mean square 1e-12 and more, and the
few samples of a task seldom have smaller ones that are not rounding. Where they do, an unclaimed
direction has an amplitude of up to 1.4e-6, which steps of size 1 and later layers may enlarge to
1e-5.
"""

import math
import warnings
from typing import NamedTuple

import torch

from helpers import drift
from promises.events import EVENTS
from promises.history import APERTURE, History, RefusedError, Task, unfreeze
from promises.optimizers import Lookahead, recipe, schedule
from promises.parts import coin
from shield.common import moments

LIMIT, LIMIT_OF_TAILS = 1e-8, 1e-5
STEPS = (3, 5)


class BrokenPromiseError(AssertionError):
    """Something drifted without a warning, or a warning was wrong."""


class Outcome(NamedTuple):
    """How a scenario ended."""

    seed: int
    end: str  # "kept", "warned" or "refused"; else what is wrong
    drift: float  # the largest on a remembered task
    moved: float  # the largest change of a weight after a task was remembered
    learned: bool  # whether the loss of a later task fell
    text: str

    @property
    def failed(self) -> bool:
        return self.end not in ("kept", "warned", "refused")

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.end}\n{self.text}\n"
            f"drift      {self.drift:.1e}, weights moved by {self.moved:.1e}, "
            f"{'learned' if self.learned else 'nothing learned'}"
        )


class Scenario(History):
    """One history, drawn as it goes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = seed
        self.data = torch.Generator().manual_seed(seed)
        self.drift = self.moved = 0.0
        self.learned = False

    def run(self) -> Outcome:
        """Play all tasks; an exception on the way becomes the end."""
        end = "kept"
        with torch.random.fork_rng([]):
            torch.manual_seed(self.seed)
            try:
                self._tasks()
                end = "warned" if self.warned else "kept"
            except RefusedError as refusal:
                names = self._names_something(str(refusal))
                end = "refused" if names else f"refused without a name: {refusal}"
            except BrokenPromiseError as broken:
                end = str(broken)
            except Exception as error:
                end = f"{type(error).__name__}: {error}"
        if self.shield is not None:
            self.shield.detach()
        return Outcome(self.seed, end, self.drift, self.moved, self.learned, self.describe())

    def _names_something(self, message: str) -> bool:
        """Whether a refusal says what it is about."""
        names = [name for name, _ in self.network.named_modules() if name]
        kinds = [type(getattr(o, "optimizer", o)).__name__ for o in self.optimizers]
        return any(name in message for name in [*names, *kinds])

    def _tasks(self) -> None:
        self.attach()
        self.guard()
        for number in range(self.count):
            self.log.append(f"[task {number}]")
            if number:
                self._go_on_to(number)
            self._learn(self._new_task(number))
            self._check()
            if self.warned:  # from here on nothing is promised
                return

    def _new_task(self, number: int) -> Task:
        batches = self.draw.randint(1, 2)
        task = Task(number, [self.plan.inputs(2, self.data) for _ in range(batches)])
        for x in task.batches:
            shape = self.forward(x, number).shape
            task.targets.append(torch.randn(shape, generator=self.data, dtype=torch.float64))
        return task

    def _learn(self, task: Task) -> None:
        draw = self.draw
        frozen = self.freeze() if coin(draw, 0.2) else []
        steps = draw.randint(*STEPS)
        self.schedulers = schedule(draw, self.optimizers)
        weights = {name: p.detach().clone() for name, p in self.network.named_parameters()}
        loss = self.loss_of(task)
        for _ in range(steps):
            self.step(task)
            if self.tasks and coin(draw, 0.3):
                event = draw.choice(EVENTS)
                self.log.append(event.__name__)
                event(self, task)
            if self.warned:
                break
        if self.tasks:
            self.learned |= self.loss_of(task) < loss
            now = dict(self.network.named_parameters())
            changes = [float((now[n].detach() - w).abs().amax()) for n, w in weights.items()]
            self.moved = max(self.moved, *changes)
        late = coin(draw, 0.1)  # what is frozen while it is remembered is not claimed
        unfreeze([] if late else frozen)
        self.remember(task)
        unfreeze(frozen if late else [])

    def _go_on_to(self, number: int) -> None:
        """Layers may come, with optimizers that learn of them; a task may be forgotten."""
        draw = self.draw
        self.plan.grow(self.network, number)
        stepped = {id(p) for o in self.optimizers for g in o.param_groups for p in g["params"]}
        added = [p for p in self.network.parameters() if id(p) not in stepped]
        if added and self.recipe.takes_groups and coin(draw):
            self.log.append("add_param_group")
            inner = getattr(self.optimizers[0], "optimizer", self.optimizers[0])
            inner.add_param_group({"params": added})
        elif added or coin(draw, 0.4):
            if coin(draw, 0.3):
                self.recipe = recipe(draw, self.plan.sparse)
                self.log.append(f"optimizers: {self.recipe.text}")
            self.guard()
        for optimizer in self.optimizers:
            if isinstance(optimizer, Lookahead) and coin(draw, 0.9):
                optimizer.slow.clear()  # else it goes half-way back to before the last task
        known = [task for task in self.tasks if task.before is not None]
        if self.options["keep_tasks"] and known and coin(draw, 0.3):
            forgotten = draw.choice(known)
            self.log.append(f"forget {forgotten.number}")
            with self.asking():
                self.shield.forget(known.index(forgotten))
            forgotten.before = None

    def _check(self) -> None:
        known = [(task, task.before) for task in self.tasks if task.before is not None]
        drifts = [drift(self.outputs(task), before) for task, before in known]
        self.drift = max([self.drift, *(math.inf if math.isnan(d) else d for d in drifts)])
        drifted = self.drift >= LIMIT
        if drifted and self.drift < LIMIT_OF_TAILS:
            drifted = not any(self._has_tails(task) for task, _ in known)
        if drifted and not self.warned:
            shown = ", ".join(f"{d:.1e}" for d in drifts)
            raise BrokenPromiseError(f"drifts of {shown}, and no warning")
        if self.drift < LIMIT and any("moved within" in message for message in self.warned):
            raise BrokenPromiseError("nothing has drifted, and a warning says so")

    def _has_tails(self, task: Task) -> bool:
        """Whether a layer has directions that are more than rounding, and too small to claim."""
        batches = [(x, task.number) for x in task.batches]
        found = moments(self.network, batches, feed=lambda model, batch: model(*batch))
        claimed, rounding = self.shield.conceptors(), 2 * torch.finfo(torch.float64).eps
        sums = [moment.correlation() for name, moment in found.items() if name in claimed]
        energies = [torch.linalg.eigvalsh(matrix) for matrix in sums]
        tails = [(e > rounding * e.max()) & (e < 2 / APERTURE**2) for e in energies]
        return any(bool(tail.any()) for tail in tails)


def play(seed: int) -> Outcome:
    """The scenario of a seed, from its beginning to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about what is drawn; the shield's are heard
        return Scenario(seed).run()
