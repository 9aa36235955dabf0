"""The shield: a network learns one task after another, and keeps what it has learned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors._internal import checks
from conceptors._internal.batches import Feed
from conceptors.shield.anchors import Anchors
from conceptors.shield.attach import (
    check_parameters,
    claim_model,
    note_tasks,
    outside_inference_mode,
    release_model,
    reshard,
    unwrap,
    unwrap_optimizer,
)
from conceptors.shield.blocks import Scan, survey
from conceptors.shield.claims import Claims, Remembered, claims_of_task
from conceptors.shield.inspection import Inspection
from conceptors.shield.options import (
    Aperture,
    Protection,
    check_apertures,
    check_names,
    check_patterns,
    check_rank,
    one_of,
)
from conceptors.shield.persistence import Persistence
from conceptors.shield.remember.run import collect
from conceptors.shield.remember.uses import Use, refuse
from conceptors.shield.room import full_layers, warn_if_full
from conceptors.shield.statistics import Statistics
from conceptors.shield.step.context import Context, Protected
from conceptors.shield.step.guards import Guards
from conceptors.shield.watch import Watch, check_steps_what_it_trains, warn_of_dropped


class Shield(Inspection, Persistence):
    """Shields a model's weights against forgetting (conceptor-aided back-propagation).

    After each task, `remember` builds for every layer a conceptor of what entered it and ORs it
    into A, the space claimed so far. From then on every optimizer that is guarded works in the
    free space F = I - A alone: on V in W = W_previous + V F^½.

    Args:
        model: any `nn.Module`. Nothing is set on it; `detach` leaves no trace.
        aperture: how much is protected. "auto" chooses it for every layer and task from the
            task's own data (see `Auto`). A number is α of the paper, larger protects more; with
            plain SGD this is Algorithm 2. Also `Quota(share)` or `Energy(share)`, or a mapping
            from layer name patterns to any of these (the first that fits counts).
        hard: use hard projectors (singular values >= 1/2 become 1, the others 0). With "auto"
            all that a task uses is claimed, up to rounding: its outputs stay, and later tasks
            learn in what it left. `Energy(0.9)` leaves more.
        increment_decay: λ of Algorithm 2: pulls the weights towards where the last task left
            them, W ← W - η 2 λ (W - W_previous), apart from the projection.
        unsupported: what to do with trainable parameters of unknown layers: "error" lists and
            refuses them, "freeze" holds them fixed once a task is remembered, "ignore" lets them
            change (and forget).
        exclude, freeze: name patterns of layers or parameters that are left alone, like
            "head.*", or held fixed once a task is remembered.
        rank: at most so many directions per layer are protected; a number, or a share of d. With
            hard conceptors earlier tasks' directions come first. Layers of more than 8192 inputs
            store a sketch of `rank` directions, by default an eighth of d; `rank=1.0` stores
            exact d x d matrices there.
        batchnorm: "freeze" keeps BatchNorm's running statistics, and normalises with them, once
            a task is remembered; "follow" lets them follow the data (old tasks then drift).
        keep_tasks: keep every task's conceptors apart, so that `forget` can remove one.
        seed: of the sampling of rows. A hard shield reads all rows of a task; others read an
            unbiased sample of at least 16384 rows and 8 d rows per layer.

    >>> import torch
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
    >>> shield = Shield(model)
    >>> optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    >>> old, new = torch.randn(64, 5) @ torch.randn(5, 20), torch.randn(64, 20)
    >>> shield.remember(old)
    Shield(2 layers, 1 task, mean quota 0.18)
    >>> before = model(old)
    >>> for _ in range(20):
    ...     optimizer.zero_grad()
    ...     model(new).square().mean().backward()
    ...     optimizer.step()
    >>> bool((model(old) - before).abs().mean() < 0.1)
    True
    """

    def __init__(
        self,
        model: nn.Module,
        aperture: Literal["auto"] | Aperture | Mapping[str, Any] = "auto",
        *,
        hard: bool = False,
        increment_decay: float = 0.0,
        unsupported: Literal["error", "freeze", "ignore"] = "error",
        exclude: Iterable[str] = (),
        freeze: Iterable[str] = (),
        rank: int | float | None = None,
        batchnorm: Literal["freeze", "follow"] = "freeze",
        keep_tasks: bool = False,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"Shield needs an nn.Module, got {type(model).__name__}")
        if isinstance(model, torch.jit.ScriptModule):
            raise ValueError(
                "Shield cannot see the inputs of layers that torch.jit.script has compiled, got a "
                f"{type(model).__name__}; shield the model before it is scripted"
            )
        self.aperture = check_apertures(aperture)
        self.hard = bool(hard)
        self.increment_decay = checks.number(increment_decay, "increment_decay", 0.0, float("inf"))
        self.unsupported = one_of(unsupported, "unsupported", ("error", "freeze", "ignore"))
        self.batchnorm = one_of(batchnorm, "batchnorm", ("freeze", "follow"))
        self.exclude = check_patterns(exclude, "exclude")
        self.freeze = check_patterns(freeze, "freeze")
        self.rank = check_rank(rank)
        self.keep_tasks = bool(keep_tasks)
        self.seed = checks.whole(seed, "seed", 0)
        self.model = unwrap(model)
        self._protection = Protection(self.aperture, self.hard, self.rank)
        self._remembered = Remembered()
        self._guards = Guards(self._make_context)
        self._full: set[str] = set()
        self._stray: set[str] = set()  # sites that are frozen for how their weights are used
        self._anchors = Anchors(near=self.increment_decay > 0)
        self._statistics = Statistics(batchnorm=self.batchnorm == "freeze")
        self._resumed: dict[str, Tensor] = {}  # notes of a checkpoint, until the next task
        self._attached = True
        claim_model(self.model, self)
        try:
            reshard(self.model)
            self._scan = self._rescan()
            check_names(self.model, self._scan.sites, self.exclude, self.freeze, self.aperture)
            self._watch = Watch(self)
        except BaseException:
            release_model(self.model)
            raise
        self._set_anchors()
        self._changed()

    # --- use ------------------------------------------------------------------------------

    def guard(
        self, optimizer: Optimizer, *, between: Callable[[], None] | None = None
    ) -> Optimizer:
        """Keep all steps of an optimizer in the free space; returns the same optimizer.

        Works through the optimizer's own step hooks, so that schedulers, gradient scalers and
        checkpoints see the optimizer they know. A wrapper with the optimizer inside, as accelerate
        makes it, is guarded there. Guard every optimizer of the model.

        Args:
            between: called at every step when `.grad` is what the optimizer is going to see,
                projected; it may change gradients in place. This is the place to clip them. An
                optimizer that is guarded already gets the new one.

        Raises:
            ValueError: it holds parameters that are not the model's, or the shield is detached.
        """
        self._check_attached()
        whole, optimizer = optimizer, unwrap_optimizer(optimizer)
        check_parameters(optimizer, self.model)
        check_steps_what_it_trains(optimizer)
        with self._watch.alone(), outside_inference_mode():
            self.refresh()
            self._guards.add(optimizer, between)
        return whole

    def remember(
        self,
        batches: Any,
        *,
        feed: Feed | None = None,
        limit: int | None = None,
        progress: bool = False,
        known: float = 0.0,
    ) -> Shield:
        """Protect what the model does on this data from now on: call it after each task.

        One pass without gradients in evaluation mode; training flags, random state and BatchNorm
        statistics stay as they are. If anything fails, nothing is remembered and nothing lost.

        Args:
            batches: a DataLoader, an iterable of batches, or a tensor of samples.
            feed: called as feed(model, batch) to run the model; by default a batch, the first
                part of a (inputs, targets) batch, or a mapping as keyword arguments.
            limit: use at most so many samples.
            progress: show a progress bar.
            known: share in [0, 1] of this task that the model could do before it learned it: so
                much of what it has in common with earlier tasks is not claimed again.

        Raises:
            ValueError: no data, NaN or infinite activations (names the layer and the batch), or
                numbers that are too coarse for the aperture.
        """
        known = checks.number(known, "known", 0.0, 1.0)
        with self._watch.alone():
            self._guards.settle()
            task = self._claims_of(batches, feed, limit, progress)
            self._watch.look()
            reshard(self.model)
            with self._all_or_nothing(), outside_inference_mode():
                self._remembered = self._remembered.with_task(
                    task, self._scan.sites, self._protection, self.keep_tasks, known
                )
                self._resumed = {}
                self._set_anchors()
                self._claims_changed()
            self._watch.remembered(task.conceptors)
        large = {name: self.quota()[name] for name in self._large()}
        self._full |= warn_if_full(large, self._full)
        return self

    def forget(self, task: int) -> Shield:
        """Free the space that one task alone claims (task 0 is the first).

        Needs `keep_tasks=True`. The weights stay as they are; later tasks may use that space. The
        other tasks are joined anew, in full where they were remembered with `known`.
        """
        if not self.keep_tasks:
            raise ValueError(
                "forget needs every task's share kept apart: make the shield with keep_tasks=True"
            )
        index, count = checks.whole(task, "task", 0), len(self._remembered.tasks)
        if index >= count:
            raise ValueError(f"task {task} is not remembered; there are {count} tasks")
        with self._watch.alone(), outside_inference_mode():
            self._watch.look()
            with self._all_or_nothing():
                self._remembered = self._remembered.without_task(
                    index, self._scan.sites, self._protection
                )
                self._resumed = {}
                self._claims_changed()
            self._watch.trust()
        self._full &= full_layers(self.quota()).keys()
        return self

    def refresh(self) -> Shield:
        """Look at the model again, after layers were added, replaced, frozen or unfrozen.

        `guard` and `remember` do this by themselves.
        """
        self._check_attached()
        with self._watch.alone():
            reshard(self.model)
            found = self._rescan()
            self._watch.wake(found.sites)
            self._set_anchors(found, new_only=True)
            if self.n_tasks:
                self._statistics.hold(self.model)
            if not found.same(self._scan):
                self._remembered = self._remembered.fitted(found.sites)
                replaced = found.replaced(self._scan)
                self._scan = found
                self._watch.look(replaced)
                self._changed()
        return self

    def detach(self) -> None:
        """Take all hooks off model and optimizers; the weights stay as they are."""
        self._guards.detach()
        self._statistics.release()
        self._watch.close()
        self._attached = False
        release_model(self.model)

    @outside_inference_mode()
    def _claims_of(
        self,
        batches: Any,
        feed: Feed | None,
        limit: int | None,
        progress: bool,
        soft: bool = False,
    ) -> Claims:
        """What one task's data would claim, or if `soft` before it is hardened; changes nothing."""
        self.refresh()
        with self._watch.resting.watching(self._scan.resting):
            moments = collect(
                self.model,
                self._scan.sites,
                batches,
                feed=feed,
                limit=limit,
                all_rows=self.hard,
                seed=self.seed + self.n_tasks,
                sketch=self._protection.sketch_rank,
                progress=progress,
                strays=self._meet_strays,
            )
        moments = {name: own for name, own in moments.items() if name in self._scan.sites}
        if self.hard and self.rank is None:
            warn_of_dropped({name: sums.dropped for name, sums in moments.items()})
        held = self._remembered.claimed.conceptors
        protection = replace(self._protection, hard=False) if soft else self._protection
        return claims_of_task(moments, self._scan.sites, protection, held)

    def _meet_strays(self, uses: Iterable[Use]) -> None:
        """Weights that are used where no rule covers it."""
        if self.unsupported == "error":
            refuse(uses)
        if self.unsupported == "freeze" and uses:
            self._stray |= {use.site for use in uses}
            self.refresh()

    def _rescan(self) -> Scan:
        frozen = [*self.freeze, *self._stray]
        found = survey(self.model, self.exclude, frozen, self.unsupported)
        for name in found.sites:
            self._protection.aperture(name)  # raises where no pattern fits
        return found

    @outside_inference_mode()
    def _set_anchors(self, found: Scan | None = None, *, new_only: bool = False) -> None:
        sites = [
            site
            for name, site in (found or self._scan).sites.items()
            if self.increment_decay or (self.n_tasks and self._protection.pull(name))
        ]
        self._anchors.set(self.model, sites, new_only=new_only)

    def _make_context(self, version: int) -> Context:
        protected = Protected(
            sites=self._scan.sites,
            claims=self._remembered.claims(self._scan.sites, self._protection),
            frozen=self._scan.frozen if self.n_tasks else {},
            magnitudes=self._scan.magnitudes if self.n_tasks else {},
            anchors=self._anchors.by_parameter(self.model),
            resumed=dict(self._resumed),
        )
        return Context(
            version=version,
            protected=protected,
            increment_decay=self.increment_decay,
            keeper=self._watch,
        )

    @outside_inference_mode()
    def _changed(self) -> None:
        self._guards.renew()

    def _claims_changed(self) -> None:
        self.quota()  # from matrices that may still be on the GPU
        self._changed()
        note_tasks(self.model, self.n_tasks)
        # what the guards need is made; what it was made of may leave the GPU
        self._remembered.claimed = self._remembered.claimed.stowed()
        if self.n_tasks:
            self._statistics.hold(self.model)
        else:
            self._statistics.release()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """If anything fails inside, what was remembered stays, and is protected."""
        before = self._remembered, self._resumed, dict(self._anchors.values)
        try:
            yield
        except BaseException:
            self._remembered, self._resumed, self._anchors.values = before
            self._claims_changed()
            raise

    def _check_attached(self) -> None:
        if not self._attached:
            raise ValueError("this shield was detached; make a new one with Shield(model, ...)")
