"""Whatever may leave a shield's promises unkept is noticed and said, never passed over."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from conceptors._internal.checks import outside
from conceptors.shield.alone import OneThread
from conceptors.shield.buffers import Buffers
from conceptors.shield.moved import Baseline, tolerance
from conceptors.shield.resting import Resting
from conceptors.shield.room import warn_if_stuck
from conceptors.shield.step.context import Keeper

if TYPE_CHECKING:
    from conceptors.shield.shield import Shield

_DROPPED = 1e-12  # of a sketch's largest direction: less is rounding


class UnprotectedWarning(UserWarning):
    """Something that was remembered is not protected, or was not."""


class Watch(Keeper):
    """What one shield looks out for.

    Attributes:
        alone: a context for work that no other thread may do at the same time.
        resting: layers that were frozen when tasks were remembered.
    """

    def __init__(self, shield: Shield) -> None:
        self._shield = shield
        self.alone = OneThread("this shield")
        self.resting = Resting()
        self._baseline = Baseline()
        self._buffers = Buffers(shield.exclude, follows_batchnorm=shield.batchnorm == "follow")
        self._foreign: dict[str, float] = {}  # what others have moved between guarded steps
        self._told: set[str] = set()
        self._missed: set[str] = set()  # layers that were named as never reached
        self._original = {id(p) for p in shield.model.parameters()}
        self._stale: WeakSet[Optimizer] = WeakSet()  # that step what is gone, as was said
        self._strangers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        _join(self)

    # --- of guards -------------------------------------------------------------------------

    def held(self) -> Counter[int]:
        return self._shield._guards.held()

    def warn(self, shares: Mapping[str, float]) -> None:
        warn_if_stuck(shares, self._shield._large())

    def check_thread(self) -> None:
        with self.alone():
            pass

    def look_again(self, optimizer: Optimizer) -> None:
        if self._shield.n_tasks:
            self._shield.refresh()
            self._look_for_strays(optimizer)
            self._look_at_buffers()
            if not self._baseline:  # after a checkpoint was loaded, with the weights or before
                self.trust()

    # --- weights ---------------------------------------------------------------------------

    def trust(self) -> None:
        """Weights are as they should be."""
        shield = self._shield
        claimed = shield._remembered.claimed.conceptors
        self._baseline.take(shield._scan.sites, claimed, shield.seed)
        self._buffers.take(shield.model)
        self._foreign, self._told = {}, set()
        shield._guards.trust()

    def remembered(self, reached: Collection[str]) -> None:
        """A task was just remembered, whose samples reached these layers."""
        self._miss(reached)
        self._look_for_idle(reached)
        self.resting.settle()
        self.trust()

    def _look_for_strays(self, optimizer: Optimizer) -> None:
        """Say that an optimizer steps what the model does not have any more."""
        held = [p for group in optimizer.param_groups for p in group["params"]]
        own = {id(p) for p in self._shield.model.parameters()}
        strays = sum(id(p) not in own for p in held)
        if strays and optimizer not in self._stale:
            self._stale.add(optimizer)
            tell(
                f"{type(optimizer).__name__} steps {strays} of {len(held)} parameters that the "
                f"model does not have any more, and nothing is learned there: they were replaced, "
                f"or loaded with assign=True. Make the optimizer anew, and guard it"
            )

    def _look_for_idle(self, reached: Collection[str]) -> None:
        """Say which layers came later, have gradients, and no guarded optimizer."""
        guards, sites = self._shield._guards, self._shield._scan.sites
        known = self._original | set(guards.held()) | guards.trained()
        found = [
            name
            for name in reached
            if name in sites
            and any(p.grad is not None and id(p) not in known for p in sites[name].active())
        ]
        self._original |= {id(p) for name in found for p in sites[name].parameters}
        if found:
            tell(
                f"layers that came after the shield have gradients, and no guarded optimizer "
                f"steps them: {_few(found)}. Make a new optimizer of all parameters when layers "
                f"are added, and guard it"
            )

    def _miss(self, reached: Collection[str]) -> None:
        """Say which layers have learned the task and got none of its samples.

        Weights that a layer shares with one that was reached may have learned there.
        """
        sites, known = self._shield._scan.sites, {*reached, *self._missed}
        trained = self._shield._guards.trained()
        trained -= {id(p) for name in reached if name in sites for p in sites[name].parameters}
        found = [
            name
            for name, site in sites.items()
            if name not in known and any(id(p) in trained for p in site.active())
        ]
        self._missed |= set(found)
        if found:
            tell(
                f"layers were trained that no sample given to remember has reached, so that "
                f"nothing of this task is protected there: {_few(found)}. Give remember batches, "
                f"or a feed(model, batch), that use them; layers that have no part in what the "
                f"model answers can be left out, exclude={[found[0]]!r}"
            )

    def wake(self, learning: Iterable[str]) -> None:
        """Say which of these layers were frozen when tasks were remembered that use them."""
        found = self.resting.woken(learning)
        if found:
            tell(
                f"layers learn now that were frozen when a task that uses them was remembered, so "
                f"that nothing of it is protected there: {', '.join(found)}. Keep them frozen "
                f"(requires_grad=False), or let them learn before remember is called"
            )

    def distrust(self) -> None:
        """Other weights may be on their way."""
        self._baseline.clear()
        self._buffers.distrust()

    def look_before_step(self) -> None:
        self.look(before_step=True)

    def look(self, replaced: frozenset[str] = frozenset(), *, before_step: bool = False) -> None:
        """Warn about blocks that something other than guarded steps moved within claimed space.

        Soft conceptors let guarded steps move weights there. What others did is then known from
        the notes of the last step, where there are any; it adds up from step to step.
        """
        shield = self._shield
        self._look_at_buffers()
        drifts, sites = self._baseline.drifts(shield._scan.sites), shield._scan.sites
        since, stepped = shield._guards.moved(), shield._guards.stepped()
        since = {name: self._foreign.get(name, 0.0) + moved for name, moved in since.items()}
        if before_step:  # which notes the weights anew
            self._foreign |= since
        found = {}
        for name, total in drifts.items():
            strict = shield.hard or name in replaced or name not in stepped
            drift = total if strict else since.get(name, 0.0)
            allowed = max(tolerance(sites[name], strict), self._baseline.rounding(name, strict))
            if drift > allowed and name not in self._told:
                found[name] = drift
        self._told |= found.keys()
        if found:
            listed = ", ".join(f"{name} ({_share(drift)})" for name, drift in found.items())
            tell(
                f"weights have moved within claimed space, where no guarded step goes: {listed}. "
                f"What was remembered there has changed. Guard every optimizer of the model, make "
                f"optimizers anew after layers are replaced, load model and shield from the same "
                f"checkpoint, and restore the best weights before remember, not after it"
            )

    def _look_at_buffers(self) -> None:
        names = self._buffers.changed(self._shield.model)
        if names:
            tell(
                f"buffers have changed since a task was remembered: {_few(names)}. The network's "
                f"outputs on remembered data change with them, and conceptors protect only "
                f"weights. Restore the buffers, collect statistics on a copy of the model, or "
                f"exclude them by name, exclude={names[:1]}"
            )

    # --- optimizers ------------------------------------------------------------------------

    def before_any_step(self, optimizer: Optimizer) -> None:
        """Say which claimed layers an optimizer steps that no guard holds."""
        shield = self._shield
        version = shield._guards.context.version
        if not shield.n_tasks or self._strangers.get(optimizer) == version:
            return
        if shield._guards.holds(optimizer):
            return
        inside = shield._guards.in_step()  # an optimizer within a guarded one
        stepped = {
            id(p)
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None and id(p) not in inside
        }
        names = list(dict.fromkeys(name for name, p in self._protected() if id(p) in stepped))
        if names:
            tell(
                f"{type(optimizer).__name__} steps weights that hold remembered tasks, and no "
                f"guard holds it: {_few(names)}. Call shield.guard(optimizer) "
                f"before its first step"
            )
        if stepped:
            self._strangers[optimizer] = version

    def _protected(self) -> Iterator[tuple[str, nn.Parameter]]:
        shield = self._shield
        for name, site in shield._scan.sites.items():
            if name in shield._remembered.claimed.conceptors:
                yield from ((name, p) for p in site.active())
        yield from shield._scan.frozen.items()

    def close(self) -> None:
        """Look out for nothing any more."""
        _leave(self)


_WATCHES: WeakSet[Watch] = WeakSet()
_HOOK: list[RemovableHandle] = []


def _join(watch: Watch) -> None:
    _WATCHES.add(watch)
    if not _HOOK:
        _HOOK.append(register_optimizer_step_pre_hook(_before_any_step))


def _leave(watch: Watch) -> None:
    _WATCHES.discard(watch)
    if not _WATCHES and _HOOK:
        _HOOK.pop().remove()


def _before_any_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    for watch in list(_WATCHES):
        watch.before_any_step(optimizer)


def check_steps_what_it_trains(optimizer: Optimizer) -> None:
    """Refuse optimizers that evaluate other weights than they train, as schedule-free ones do."""
    if all(callable(getattr(optimizer, name, None)) for name in ("train", "eval")):
        raise ValueError(
            f"{type(optimizer).__name__} evaluates other weights than it trains (it has train() "
            f"and eval()), and a shield can only protect those that it steps; use an optimizer "
            f"without such a switch, and average weights in a copy of the model"
        )


def warn_of_dropped(shares: Mapping[str, float]) -> None:
    """Warn about layers whose sketch, under `hard=True`, had no room for all directions."""
    names = [name for name, share in shares.items() if share > _DROPPED]
    if names:
        tell(
            f"hard=True does not protect all directions of these wide layers: {_few(names)}. Their "
            f"inputs fill the sketch that stands in for a d x d matrix. Make the shield with "
            f"rank=1.0 for exact matrices, or with a larger rank for a larger sketch"
        )


def warn_of_lost_tasks(shield: Shield, before: int, remedy: str) -> None:
    """Warn if a shield that had remembered `before` tasks knows fewer since it was loaded."""
    if shield.n_tasks < before:
        tell(
            f"the shield had remembered {before} tasks, and the checkpoint that was resumed knows "
            f"{shield.n_tasks} of them: later ones are not protected any more. {remedy}"
        )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _share(drift: float) -> str:
    if drift == float("inf"):
        return "of another shape"
    return f"by {drift:.0%}" if drift >= 0.005 else f"by {drift:.0e}"


def tell(message: str) -> None:
    """Warn where the user's code is."""
    warnings.warn(message, UnprotectedWarning, stacklevel=outside())
