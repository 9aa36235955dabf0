"""Whole histories of a shielded network drawn by one number: tasks, and what happens in between.

Everything that was remembered must stay within 1e-8, relative, or the shield must have refused or
warned. Hard conceptors of a large aperture claim every direction that the few samples use; these
have no tail of directions too small for that.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning
from promises.architectures import Network, Plan, coin, plan
from promises.optimizers import Lookahead, Recipe, recipe, schedule

LIMIT = 1e-8
APERTURE = 1e6


class Refused(Exception):
    """The shield has declined, and said why."""


class Broken(AssertionError):
    """A promise was not kept."""


class Interrupt(Exception):
    """As Ctrl-C, in the middle of a step."""


class Outcome(NamedTuple):
    """How a scenario ended.

    Attributes:
        end: "kept", "warned" or "refused"; else what is wrong.
        drift: the largest on a remembered task.
        moved: the largest change of a weight after a task was remembered.
        learned: whether the loss of a later task fell.
    """

    seed: int
    end: str
    drift: float
    moved: float
    learned: bool
    text: str

    @property
    def failed(self) -> bool:
        return self.end not in ("kept", "warned", "refused")


@dataclass
class Task:
    """Data, and what the network made of it when it was remembered."""

    number: int
    batches: list[Tensor]
    targets: list[Tensor] = field(default_factory=list)
    before: Tensor | None = None  # None once it is forgotten


class Scenario:
    """One history, drawn as it goes."""

    def __init__(self, seed: int) -> None:
        self.seed, self.draw = seed, Random(seed)
        self.log: list[str] = []
        self.told: list[str] = []
        self.tasks: list[Task] = []
        self.drift = self.moved = 0.0
        self.learned = False
        self.data = torch.Generator().manual_seed(seed)
        self.count = self.draw.choice([2, 2, 3])
        self.plan: Plan = plan(seed, self.count)
        self.network: Network = self.plan.make(0)
        self.options = self._options()
        by_inputs = self.options.get("project") == "inputs"
        self.plain = by_inputs
        self.recipe: Recipe = recipe(self.draw, self.network, self.plan.sparse, by_inputs)
        self.shield: Any = None
        self.optimizers: list[Any] = []
        self.schedulers: list[Any] = []
        self.interrupting = False

    # --- drawn once ------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        draw = self.draw
        aperture: Any = APERTURE if coin(draw, 0.8) else {"entry*": APERTURE, "*": APERTURE}
        found: dict[str, Any] = {"aperture": aperture, "hard": True, "warn_at_quota": 1.0}
        if self.plan.strange:
            found["unsupported"] = draw.choice(["freeze", "freeze", "error"])
        if coin(draw, 0.15) and not self.plan.sparse:
            found["project"] = "inputs"
        elif coin(draw, 0.1):
            found["increment_decay"] = 0.1
        found["keep_tasks"] = coin(draw, 0.3)
        found["rows"] = draw.choice(["auto", None, 10_000])
        if coin(draw, 0.1) and len(self.network.parts):
            found["freeze"] = [f"parts.{draw.randrange(len(self.network.parts))}"]
            if not any(True for _ in self.network.parts[int(found["freeze"][0][6:])].parameters()):
                del found["freeze"]
        if len(self.network.heads) == self.count > 1 and coin(draw, 0.2):
            found["exclude"] = [f"heads.{self.count - 1}"]  # of the last task, which is not kept
        return found

    def describe(self) -> str:
        shown = {k: v for k, v in self.options.items() if k not in ("hard", "warn_at_quota")}
        return (
            f"network    {self.plan.text}\noptimizer  {self.recipe.text}\n"
            f"shield     {shown}\nevents     {', '.join(self.log)}"
        )

    # --- the history -----------------------------------------------------------------------

    def run(self) -> Outcome:
        """Through all tasks; never raises for what the shield does."""
        end = "kept"
        with torch.random.fork_rng([]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(self.seed)
            try:
                self._attach()
                self._guard()
                for number in range(self.count):
                    self._task(number)
                    if self.told:
                        end = "warned"
                        break
            except Refused as refusal:
                end = "refused" if self._names_something(str(refusal)) else f"refused: {refusal}"
            except Broken as broken:
                end = str(broken)
            except Exception as error:  # any other exception is a failure to report
                end = f"{type(error).__name__}: {error}"
        text = self.describe() + "".join(f"\ntold       {word}" for word in self.told)
        if self.shield is not None:
            self.shield.detach()
        return Outcome(self.seed, end, self.drift, self.moved, self.learned, text)

    def _task(self, number: int) -> None:
        draw, first = self.draw, number == 0
        self.log.append(f"[task {number}]")
        if not first:
            self._between_tasks(number)
        task = Task(number, [self.plan.inputs(2, self.data) for _ in range(draw.randint(1, 2))])
        for x in task.batches:
            shape = self._forward(x, number).shape
            task.targets.append(torch.randn(shape, generator=self.data, dtype=torch.float64))
        frozen = self._maybe_freeze() if coin(draw, 0.2) else []
        steps = draw.randint(3, 6)
        self.schedulers = schedule(draw, self.optimizers, steps)
        weights = {name: p.detach().clone() for name, p in self.network.named_parameters()}
        loss = self._loss_of(task)
        for _ in range(steps):
            self._step(task)
            if not first:
                self._maybe_something(task)
            if self.told:
                break
        if not first:
            self.learned |= self._loss_of(task) < loss
            now = dict(self.network.named_parameters())
            changes = [float((now[n].detach() - w).abs().amax()) for n, w in weights.items()]
            self.moved = max(self.moved, *changes)
        late = coin(draw, 0.2)
        self._unfreeze(frozen if not late else [])
        self._remember(task)
        self._unfreeze(frozen if late else [])
        self._check()

    def _attach(self) -> None:
        with self._asking():
            self.shield = Shield(self.network, **self.options)

    def _guard(self) -> None:
        """New optimizers, guarded."""
        self.optimizers = self.recipe.make(self.network)
        for wrapped in self.optimizers:
            optimizer = getattr(wrapped, "optimizer", wrapped)
            optimizer.register_step_post_hook(self._interrupt)  # before the guard's own
            between = (lambda: None) if coin(self.draw, 0.1) else None
            with self._asking():
                assert self.shield.guard(wrapped, between=between) is wrapped
        self.schedulers = []

    def _interrupt(self, *_: Any) -> None:
        if self.interrupting:
            self.interrupting = False
            raise Interrupt

    def _remember(self, task: Task) -> None:
        batches: Any = [(x, task.number) for x in task.batches]
        if coin(self.draw, 0.3):
            batches = iter(batches)
        with self._asking():
            self.shield.remember(batches, feed=lambda model, batch: model(*batch))
        task.before = self._outputs(task)
        self.tasks.append(task)

    # --- steps -----------------------------------------------------------------------------

    def _forward(self, x: Tensor, task: int) -> Tensor:
        with torch.no_grad(), _evaluating(self.network):
            found: Tensor = self.network(x, task)
        return found

    def _outputs(self, task: Task) -> Tensor:
        return torch.cat([self._forward(x, task.number).flatten() for x in task.batches])

    def _loss_of(self, task: Task) -> float:
        wanted = torch.cat([target.flatten() for target in task.targets])
        return float((self._outputs(task) - wanted).square().mean())

    def _backward(self, task: Task) -> float:
        """Gradients added up over all batches."""
        total = 0.0
        sign = -1.0 if self.recipe.maximizes else 1.0
        for x, target in zip(task.batches, task.targets):
            loss = sign * (self.network(x, task.number) - target).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def _step(self, task: Task) -> None:
        to_none = coin(self.draw, 0.7)
        clip = self.draw.choice(["", "", "norm", "value"]) if not self.plan.sparse else ""
        clip = "norm" if clip and self.plain else clip  # the shield must see plain gradients then

        def gradients() -> float:
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=to_none)
            loss = self._backward(task)
            if clip == "norm":
                nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
            elif clip == "value":
                nn.utils.clip_grad_value_(self.network.parameters(), 0.1)
            return loss

        with self._listening():
            if self.recipe.takes_closure:
                self.optimizers[0].step(gradients)
            else:
                gradients()
                for optimizer in self.optimizers:
                    optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()

    # --- what happens in between -----------------------------------------------------------

    def _maybe_something(self, task: Task) -> None:
        if not coin(self.draw, 0.3):
            return
        what: Callable[[Task], None] = self.draw.choice(
            [
                self._checkpoint,
                self._checkpoint,
                self._reattach,
                self._copy,
                self._evaluate,
                self._skip,
                self._replace_optimizers,
                self._interrupted_step,
                self._explain,
                self._stranger,
                self._partial,
            ]
        )
        self.log.append(what.__name__.strip("_"))
        what(task)

    def _between_tasks(self, number: int) -> None:
        """Layers may come, optimizers are told or made anew, a task may be forgotten."""
        size = len(list(self.network.parameters()))
        self.plan.grow(self.network, number)
        added = list(self.network.parameters())[size:]
        kept = {id(p) for o in self.optimizers for g in o.param_groups for p in g["params"]}
        added = [p for p in self.network.parameters() if id(p) not in kept]
        lone = len(self.optimizers) == 1 and not self.recipe.takes_closure
        if added and lone and "Muon" not in self.recipe.text and coin(self.draw):
            self.log.append("add_param_group")
            inner = getattr(self.optimizers[0], "optimizer", self.optimizers[0])
            inner.add_param_group({"params": added})
        elif added or coin(self.draw, 0.4):
            if coin(self.draw, 0.3):
                self.recipe = recipe(self.draw, self.network, self.plan.sparse, self.plain)
                self.log.append(f"optimizers: {self.recipe.text}")
            self._guard()
        if coin(self.draw, 0.9):
            for optimizer in self.optimizers:
                if isinstance(optimizer, Lookahead):
                    optimizer.slow.clear()
        if self.options["keep_tasks"] and coin(self.draw, 0.3):
            gone = self.draw.choice([task for task in self.tasks if task.before is not None])
            self.log.append(f"forget {gone.number}")
            with self._asking():
                known = [task for task in self.tasks if task.before is not None]
                self.shield.forget(known.index(gone))
            gone.before = None

    def _maybe_freeze(self) -> list[nn.Parameter]:
        """Some parameters stop learning for a while."""
        modules = [m for m in [self.network.entry, *self.network.parts] if list(m.parameters())]
        if not modules or "project" in self.options:
            return []
        some = list(self.draw.choice(modules).parameters())
        if coin(self.draw, 0.3):
            some = [p for p in some if p.ndim == 1]
        if len(some) == len(list(self.network.parameters())):
            return []
        self.log.append(f"freeze {len(some)} parameters")
        for p in some:
            p.requires_grad_(False)
        return some

    def _unfreeze(self, some: list[nn.Parameter]) -> None:
        for p in some:
            p.requires_grad_(True)

    def _checkpoint(self, task: Task) -> None:
        """Everything saved, and loaded into new objects in some order."""
        del task
        weights = copy.deepcopy(self.network.state_dict())
        steps = [copy.deepcopy(optimizer.state_dict()) for optimizer in self.optimizers]
        with self._asking():
            state = copy.deepcopy(self.shield.state_dict())
        slow = [getattr(optimizer, "slow", None) for optimizer in self.optimizers]
        learns = [p.requires_grad for p in self.network.parameters()]
        groups = [len(o.param_groups) for o in self.optimizers]
        self.shield.detach()
        names = [name for name, _ in self.network.named_parameters()]
        network = self.plan.make(self.tasks[-1].number + 1)
        for p, flag in zip(network.parameters(), learns):
            p.requires_grad_(flag)
        assert names == [name for name, _ in network.named_parameters()]
        ids = [[id(p) for g in o.param_groups for p in g["params"]] for o in self.optimizers]
        order = {id(p): i for i, p in enumerate(self.network.parameters())}
        self.network = network
        weights_first = coin(self.draw)
        if weights_first:
            network.load_state_dict(weights)
        self._attach()
        early = coin(self.draw)
        if early:
            self._guard()
        with self._asking():
            self.shield.load_state_dict(state)
        if not weights_first:
            network.load_state_dict(weights)
        if not early:
            self._guard()
        again = list(network.parameters())
        for number, optimizer in enumerate(self.optimizers):
            mine = [[id(p) for p in g["params"]] for g in optimizer.param_groups]
            if len(mine) == groups[number] and sum(mine, []) == [
                id(again[order[i]]) for i in ids[number]
            ]:
                optimizer.load_state_dict(steps[number])
        del slow  # averages are not saved: they begin anew

    def _reattach(self, task: Task) -> None:
        del task
        with self._asking():
            state = self.shield.state_dict()
            self.shield.detach()
            self._attach()
            self.shield.load_state_dict(state)
        if coin(self.draw):
            self._guard()
        else:
            with self._asking():
                for optimizer in self.optimizers:
                    self.shield.guard(optimizer)

    def _copy(self, task: Task) -> None:
        """What is done to a copy is nobody's business."""
        twin: Any = copy.deepcopy(self.network)
        optimizer = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], lr=0.1)
        twin(task.batches[0], task.number).square().mean().backward()
        with self._listening():
            optimizer.step()

    def _evaluate(self, task: Task) -> None:
        """A step in evaluation mode."""
        with _evaluating(self.network):
            self._step(task)

    def _skip(self, task: Task) -> None:
        """Gradients without a step, as after an overflow."""
        self._backward(task)

    def _partial(self, task: Task) -> None:
        """Some gradients are missing."""
        if self.recipe.takes_closure or self.plain:
            return
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self._backward(task)
        for p in self.network.parameters():
            p.grad = p.grad if coin(self.draw) else None
        with self._listening():
            for optimizer in self.optimizers:
                optimizer.step()

    def _replace_optimizers(self, task: Task) -> None:
        del task
        self.recipe = recipe(self.draw, self.network, self.plan.sparse, self.plain)
        self.log.append(self.recipe.text)
        self._guard()

    def _interrupted_step(self, task: Task) -> None:
        self.interrupting = True
        try:
            self._step(task)
        except Interrupt:
            return
        self.interrupting = False

    def _explain(self, task: Task) -> None:
        del task
        with self._asking():
            self.shield.explain()

    def _stranger(self, task: Task) -> None:
        """An optimizer that nobody guards."""
        if not coin(self.draw, 0.2):
            return
        self._backward(task)
        some = [p for p in self.network.parameters() if p.grad is not None and p.grad.is_sparse is False]
        stranger = torch.optim.SGD(some, lr=0.1)
        with self._listening():
            stranger.step()
        self.log.append("steps")

    # --- what was said ---------------------------------------------------------------------

    @contextmanager
    def _listening(self) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        self.told += [str(w.message) for w in caught if issubclass(w.category, UnprotectedWarning)]

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """What the shield raises is a refusal."""
        with self._listening():
            try:
                yield
            except (ValueError, TypeError) as error:
                raise Refused(str(error)) from error

    def _names_something(self, message: str) -> bool:
        names = [name for name, _ in self.network.named_modules() if name]
        kinds = [type(getattr(o, "optimizer", o)).__name__ for o in self.optimizers]
        return any(name in message for name in [*names, *kinds])

    def _check(self) -> None:
        """The promise."""
        kept = [(t, t.before) for t in self.tasks if t.before is not None]
        drifts = [
            float((self._outputs(t) - before).norm() / before.norm().clamp_min(1e-12))
            for t, before in kept
        ]
        self.drift = max([self.drift, *(d if d == d else float("inf") for d in drifts)])
        if self.drift >= LIMIT and not self.told:
            raise Broken(f"drifts {drifts} after task {self.tasks[-1].number}, and nothing was said")
        if self.drift < LIMIT and any("moved within" in word for word in self.told):
            raise Broken(f"nothing has drifted, but it was said: {self.told[0]}")


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    flags = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def play(seed: int) -> Outcome:
    """The scenario of a seed, from its beginning to its end."""
    return Scenario(seed).run()
