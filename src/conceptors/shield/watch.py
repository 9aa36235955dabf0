"""Warn about everything that leaves remembered tasks unprotected."""

from __future__ import annotations

import warnings
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
from conceptors.shield.guard import Callbacks
from conceptors.shield.moved import Baseline, tolerance
from conceptors.shield.resting import Resting
from conceptors.shield.room import warn_if_stuck

if TYPE_CHECKING:
    from conceptors.shield.shield import Shield

_DROPPED = 1e-12  # of a sketch's largest direction: less is rounding


class UnprotectedWarning(UserWarning):
    """A remembered task is not fully protected."""


class Watch(Callbacks):
    """Observe the weights, buffers and optimizers of one shield's model.

    Attributes:
        alone: a context for work that only one thread may do at a time.
        resting: layers that were frozen when tasks were remembered.
    """

    def __init__(self, shield: Shield) -> None:
        self._shield = shield
        self.alone = OneThread("this shield")
        self.resting = Resting()
        self._baseline = Baseline()
        self._buffers = Buffers(shield.exclude, follows_batchnorm=shield.batchnorm == "follow")
        self._foreign: dict[str, float] = {}  # how far other code has moved weights between steps
        self._reported: set[str] = set()  # layers whose weights were reported as moved
        self._missed: set[str] = set()  # layers that were reported as never reached
        self._original = {id(p) for p in shield.model.parameters()}
        self._stale: WeakSet[Optimizer] = WeakSet()  # reported: they step removed parameters
        self._strangers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        _join(self)

    # --- callbacks of guards ---------------------------------------------------------------

    def report_passing(self, shares: Mapping[str, float]) -> None:
        warn_if_stuck(shares, self._shield._large())

    def check_thread(self) -> None:
        with self.alone():
            pass

    def look_again(self, optimizer: Optimizer) -> None:
        if self._shield.n_tasks:
            self._shield.refresh()
            self._warn_of_removed(optimizer)
            self._look_at_buffers()
            if not self._baseline:  # after a checkpoint was loaded
                self.trust()

    # --- weights ---------------------------------------------------------------------------

    def trust(self) -> None:
        """Trust the current weights and buffers."""
        shield = self._shield
        claimed = shield._remembered.claimed.conceptors
        self._baseline.take(shield._scan.sites, claimed, shield.seed)
        self._buffers.take(shield.model)
        self._foreign, self._reported = {}, set()
        shield._guards.trust()

    def remembered(self, reached: Collection[str]) -> None:
        """Check the layers after a task was remembered whose samples reached these layers."""
        self._warn_of_missed(reached)
        self._warn_of_unguarded(reached)
        self.resting.settle()
        self.trust()

    def _warn_of_removed(self, optimizer: Optimizer) -> None:
        """Warn if an optimizer steps parameters that are not in the model any more."""
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        in_model = {id(p) for p in self._shield.model.parameters()}
        removed = sum(id(p) not in in_model for p in stepped)
        if removed and optimizer not in self._stale:
            self._stale.add(optimizer)
            warn_unprotected(
                f"{type(optimizer).__name__} steps {removed} of {len(stepped)} parameters that are "
                f"not in the model any more, because they were replaced, or loaded with "
                f"assign=True. The model does not learn from these steps. Create a new optimizer, "
                f"and guard it"
            )

    def _warn_of_unguarded(self, reached: Collection[str]) -> None:
        """Warn about layers that were added later, have gradients, and no guarded optimizer."""
        guards, sites = self._shield._guards, self._shield._scan.sites
        known = self._original | set(guards.optimizer_counts()) | guards.trained()
        unguarded = [
            name
            for name in reached
            if name in sites
            and any(p.grad is not None and id(p) not in known for p in sites[name].active())
        ]
        self._original |= {id(p) for name in unguarded for p in sites[name].parameters}
        if unguarded:
            warn_unprotected(
                f"layers that were added after the shield was created have gradients, but no "
                f"guarded optimizer steps them: {_few(unguarded)}. They learn unprotected, or not "
                f"at all. Create a new optimizer of all parameters when layers are added, and "
                f"guard it"
            )

    def _warn_of_missed(self, reached: Collection[str]) -> None:
        """Warn about layers that were trained, but not reached by the samples of the task.

        Weights that are shared with a layer that was reached do not count.
        """
        sites, known = self._shield._scan.sites, {*reached, *self._missed}
        trained = self._shield._guards.trained()
        trained -= {id(p) for name in reached if name in sites for p in sites[name].parameters}
        missed = [
            name
            for name, site in sites.items()
            if name not in known and any(id(p) in trained for p in site.active())
        ]
        self._missed |= set(missed)
        if missed:
            warn_unprotected(
                f"layers were trained that no sample passed to remember has reached: "
                f"{_few(missed)}. Nothing of this task is protected there. Pass remember batches, "
                f"or a feed(model, batch), that use these layers. Exclude layers that do not "
                f"affect the model's outputs, exclude={[missed[0]]!r}"
            )

    def wake(self, learning: Iterable[str]) -> None:
        """Warn about layers that learn now and were frozen when a task used them."""
        woken = self.resting.woken(learning)
        if woken:
            warn_unprotected(
                f"layers learn now that were frozen when a task that uses them was remembered: "
                f"{', '.join(woken)}. Nothing of that task is protected there. Keep them frozen "
                f"(requires_grad=False), or unfreeze them before remember is called"
            )

    def distrust(self) -> None:
        """Forget the trusted weights and buffers, because others may be loaded."""
        self._baseline.clear()
        self._buffers.distrust()

    def look_before_step(self) -> None:
        self.look(before_step=True)

    def look(self, replaced: frozenset[str] = frozenset(), *, before_step: bool = False) -> None:
        """Warn about weights that other code than guarded steps moved in protected directions.

        With soft conceptors, guarded steps move weights there too. The changes of other code are
        then measured against the notes of the last step, and added up from step to step.
        """
        shield = self._shield
        self._look_at_buffers()
        drifts, sites = self._baseline.drifts(shield._scan.sites), shield._scan.sites
        since, stepped = shield._guards.moved(), shield._guards.stepped()
        since = {name: self._foreign.get(name, 0.0) + drift for name, drift in since.items()}
        if before_step:  # the step will renew the notes
            self._foreign |= since
        moved = {}
        for name, total in drifts.items():
            strict = shield.hard or name in replaced or name not in stepped
            drift = total if strict else since.get(name, 0.0)
            allowed = max(tolerance(sites[name], strict), self._baseline.rounding(name, strict))
            if drift > allowed and name not in self._reported:
                moved[name] = drift
        self._reported |= moved.keys()
        if moved:
            listed = ", ".join(f"{name} ({_percent(drift)})" for name, drift in moved.items())
            warn_unprotected(
                f"weights have moved in protected directions, where guarded steps do not move "
                f"them: {listed}. The model's outputs on remembered tasks have changed. Guard "
                f"every optimizer of the model, create new optimizers after layers are replaced, "
                f"load model and shield from the same checkpoint, and restore the best weights "
                f"before you call remember"
            )

    def _look_at_buffers(self) -> None:
        names = self._buffers.changed(self._shield.model)
        if names:
            warn_unprotected(
                f"buffers have changed since a task was remembered: {_few(names)}. The model's "
                f"outputs on remembered tasks change with them, because a shield protects only "
                f"weights. Restore the buffers, collect statistics on a copy of the model, or "
                f"exclude them by name, exclude={names[:1]}"
            )

    # --- optimizers ------------------------------------------------------------------------

    def before_any_step(self, optimizer: Optimizer) -> None:
        """Warn if an optimizer that is not guarded steps protected layers."""
        shield = self._shield
        version = shield._guards.version
        if not shield.n_tasks or self._strangers.get(optimizer) == version:
            return
        if shield._guards.is_guarded(optimizer):
            return
        inside = shield._guards.in_step()  # the optimizer may be inside a guarded one
        stepped = {
            id(p)
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None and id(p) not in inside
        }
        names = list(dict.fromkeys(name for name, p in self._protected() if id(p) in stepped))
        if names:
            warn_unprotected(
                f"{type(optimizer).__name__} is not guarded, but steps weights of remembered "
                f"tasks: {_few(names)}. The model will forget these tasks. Call "
                f"shield.guard(optimizer) before its first step"
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
        """Stop observing."""
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
    """Raise ValueError for optimizers that evaluate other weights than they train."""
    if all(callable(getattr(optimizer, name, None)) for name in ("train", "eval")):
        raise ValueError(
            f"{type(optimizer).__name__} evaluates other weights than it trains (it has train() "
            f"and eval()), and a shield protects only weights that the optimizer steps; use an "
            f"optimizer without such a switch, and average weights in a copy of the model"
        )


def warn_of_dropped(shares: Mapping[str, float]) -> None:
    """Warn about layers whose sketch is too small for all directions, with `hard=True`."""
    names = [name for name, share in shares.items() if share > _DROPPED]
    if names:
        warn_unprotected(
            f"hard=True does not protect all directions of these wide layers: {_few(names)}. Their "
            f"inputs need more directions than their sketch stores. Create the shield with "
            f"rank=1.0 for exact matrices, or with a larger rank for a larger sketch"
        )


def warn_of_lost_tasks(shield: Shield, before: int, remedy: str) -> None:
    """Warn if a shield that had remembered `before` tasks has fewer after it was loaded."""
    if shield.n_tasks < before:
        warn_unprotected(
            f"the shield had remembered {before} tasks, but the resumed checkpoint contains only "
            f"{shield.n_tasks} of them. The later tasks are not protected any more. {remedy}"
        )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _percent(drift: float) -> str:
    if drift == float("inf"):
        return "of another shape"
    return f"by {drift:.0%}" if drift >= 0.005 else f"by {drift:.0e}"


def warn_unprotected(message: str) -> None:
    """Issue an `UnprotectedWarning` at the line of the user's code."""
    warnings.warn(message, UnprotectedWarning, stacklevel=outside())
