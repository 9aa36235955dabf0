"""The public class `Shield`."""

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
from conceptors.shield.claims import Claims, Remembered, claims_of_task, decompose
from conceptors.shield.collect import collect
from conceptors.shield.inspection import Inspection
from conceptors.shield.options import (
    Aperture,
    Protection,
    check_apertures,
    check_flag,
    check_names,
    check_patterns,
    check_rank,
    one_of,
)
from conceptors.shield.persistence import Persistence
from conceptors.shield.room import full_layers, warn_if_full
from conceptors.shield.statistics import Statistics
from conceptors.shield.step.context import Context, Protected
from conceptors.shield.step.guards import Guards
from conceptors.shield.uses import StrayUse, refuse
from conceptors.shield.watch import Watch, check_steps_what_it_trains, warn_of_dropped


class Shield(Inspection, Persistence):
    """Protect a model's weights against forgetting (conceptor-aided back-propagation).

    `remember` computes a conceptor of each layer's inputs on a task's data, and joins it with those
    of earlier tasks (A ← A ∨ C). Guarded optimizers then change weights only in the free space
    F = I - A: in W = W_before + V F^½, they train V.

    Args:
        model: the model to protect. Nothing is set on its modules or parameters.
        aperture: how much is protected. `"auto"` chooses the aperture of each layer and task from
            the data (see `Auto`). A number is the paper's aperture α, and a larger number protects
            more; with plain SGD this is Algorithm 2. `Quota(share)` and `Energy(share)` choose the
            aperture by a share of the space or of the energy. A mapping from layer name patterns
            to any of these sets the aperture by layer; the first matching pattern counts.
            Default: `"auto"`.
        hard: whether to use hard conceptors, which round singular values to 0 or 1. With
            `"auto"`, all directions that a task uses are protected: old outputs stay fixed to
            numerical precision, and later tasks use only the others. Default: `False`.
        increment_decay: λ of Algorithm 2. Decays weights towards their values after the last task,
            W ← W - η 2 λ (W - W_before), independently of the projection. Default: `0`.
        unsupported: how to treat trainable parameters of unsupported layers. `"error"` lists
            them in a `ValueError`, `"freeze"` fixes them once a task is remembered, and
            `"ignore"` trains them unprotected. Default: `"error"`.
        exclude: name patterns of layers or parameters to train unprotected, such as `"head.*"`.
        freeze: name patterns of layers or parameters to fix once a task is remembered.
        rank: the largest number of protected directions per layer, as an integer or as a share of
            the layer's inputs. With hard conceptors, directions of earlier tasks have priority.
            Layers with more than 8192 inputs store a sketch of `rank` directions, by default an
            eighth of their inputs; with `rank=1.0` they store exact matrices.
        batchnorm: `"freeze"` fixes BatchNorm's running statistics, and normalises with them,
            once a task is remembered. `"follow"` lets them follow the data, and outputs on old
            tasks drift. Default: `"freeze"`.
        keep_tasks: whether to store each task's conceptors separately, for `forget`.
            Default: `False`.
        seed: the seed for the sampling of rows. A hard shield uses all rows of a task. Other
            shields use an unbiased sample of at least 16384 rows, and 8 rows per input, of each
            layer. Default: `0`.

    Raises:
        ValueError: the model has unsupported parameters, is scripted, or already has a shield; or
            an option is invalid.

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
            raise TypeError(
                f"Shield needs an nn.Module, got {type(model).__name__}; pass the model"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise ValueError(
                f"{type(model).__name__} is compiled by torch.jit.script, which hides the inputs "
                f"of its layers from a shield; shield the model before it is scripted"
            )
        self.aperture = check_apertures(aperture)
        self.hard = check_flag(hard, "hard")
        self.increment_decay = checks.number(increment_decay, "increment_decay", 0.0, float("inf"))
        self.unsupported = one_of(unsupported, "unsupported", ("error", "freeze", "ignore"))
        self.batchnorm = one_of(batchnorm, "batchnorm", ("freeze", "follow"))
        self.exclude = check_patterns(exclude, "exclude")
        self.freeze = check_patterns(freeze, "freeze")
        self.rank = check_rank(rank)
        self.keep_tasks = check_flag(keep_tasks, "keep_tasks")
        self.seed = checks.whole(seed, "seed", 0)
        self.model = unwrap(model)
        self._protection = Protection(self.aperture, self.hard, self.rank)
        self._remembered = Remembered()
        self._guards = Guards(self._make_context)
        self._full: set[str] = set()
        self._stray: set[str] = set()  # blocks that are frozen because their uses are not covered
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
        """Keep all steps of an optimizer in the free space, and return the optimizer.

        Call this for every optimizer of the model, before its first step. The shield uses the
        optimizer's step hooks, so schedulers, gradient scalers and checkpoints work as usual.

        Args:
            optimizer: any torch optimizer, or a wrapper with the optimizer as its attribute
                `optimizer`, such as that of accelerate.
            between: a function that is called in every step, when `.grad` contains the projected
                gradients that the optimizer is about to use. It may change them in place; clip
                gradients here. For an optimizer that is already guarded, it replaces the
                function.

        Returns:
            The optimizer that was passed.

        Raises:
            TypeError: not an optimizer.
            ValueError: the optimizer steps parameters that are not part of the model, or evaluates
                other weights than it trains; or the shield is detached.
        """
        self._check_attached()
        if between is not None and not callable(between):
            raise TypeError(
                f"between must be a function without arguments, got {type(between).__name__}; "
                f"write between=lambda: clip_grad_norm_(model.parameters(), 1.0)"
            )
        given, optimizer = optimizer, unwrap_optimizer(optimizer)
        check_parameters(optimizer, self.model)
        check_steps_what_it_trains(optimizer)
        with self._watch.alone(), outside_inference_mode():
            self.refresh()
            self._guards.add(optimizer, between)
        return given

    def remember(
        self,
        batches: Any,
        *,
        feed: Feed | None = None,
        limit: int | None = None,
        progress: bool = False,
        known: float = 0.0,
    ) -> Shield:
        """Protect the model's outputs on this data from now on. Call it after each task.

        The model runs once over the data, in evaluation mode and without gradients. Training
        flags, random state and BatchNorm statistics do not change. If an error occurs, the task is
        not remembered, and earlier tasks stay protected.

        Args:
            batches: a DataLoader, an iterable of batches, or a tensor of samples.
            feed: a function that runs the model, called as `feed(model, batch)`. Default: call
                the model with the batch, the first element of an (inputs, targets) batch, or a
                mapping as keyword arguments.
            limit: the largest number of samples to use. Default: all.
            progress: whether to show a progress bar. Default: `False`.
            known: the share of this task in [0, 1] that the model could do before it was trained
                on it. Directions shared with earlier tasks are counted less by this share.

        Returns:
            The shield.

        Raises:
            TypeError: `batches` is a single batch or not iterable.
            ValueError: there is no data, no layer is reached, activations are NaN or infinite
                (names the layer and the batch), or their precision is too coarse for the aperture.
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
        """Free the directions that only one task uses. The weights do not change.

        Args:
            task: the index of the task; 0 is the first remembered task.

        Returns:
            The shield.

        Raises:
            ValueError: the shield was created without `keep_tasks=True`, or has no such task.
        """
        if not self.keep_tasks:
            raise ValueError(
                "forget needs the conceptors of each task, which this shield does not store; "
                "create the shield with keep_tasks=True"
            )
        index, count = checks.whole(task, "task", 0), len(self._remembered.tasks)
        if index >= count:
            raise ValueError(
                f"task {task} is not remembered; there are {count} tasks, and the first is task 0"
            )
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
        """Scan the model again, after layers were added, replaced, frozen or unfrozen.

        `guard` and `remember` call this themselves.

        Returns:
            The shield.
        """
        self._check_attached()
        with self._watch.alone():
            reshard(self.model)
            scan = self._rescan()
            self._watch.wake(scan.sites)
            self._set_anchors(scan, new_only=True)
            if self.n_tasks:
                self._statistics.freeze(self.model)
            if not scan.same(self._scan):
                self._remembered = self._remembered.fitted(scan.sites)
                replaced = scan.replaced(self._scan)
                self._scan = scan
                self._watch.look(replaced)
                self._changed()
        return self

    def detach(self) -> None:
        """Remove all hooks from the model and the optimizers. The weights do not change."""
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
        """Compute what one task's data would claim, if `soft` before it is hardened."""
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
                strays=self._handle_strays,
            )
        moments = {name: sums for name, sums in moments.items() if name in self._scan.sites}
        if self.hard and self.rank is None:
            warn_of_dropped({name: sums.dropped for name, sums in moments.items()})
        claimed = self._remembered.claimed.conceptors
        protection = replace(self._protection, hard=False) if soft else self._protection
        return claims_of_task(moments, self._scan.sites, protection, claimed)

    def _handle_strays(self, uses: Iterable[StrayUse]) -> None:
        """Refuse or freeze weights that are used outside of their rules."""
        if self.unsupported == "error":
            refuse(uses)
        if self.unsupported == "freeze" and uses:
            self._stray |= {use.site for use in uses}
            self.refresh()

    def _rescan(self) -> Scan:
        frozen = [*self.freeze, *self._stray]
        scan = survey(self.model, self.exclude, frozen, self.unsupported)
        for name in scan.sites:
            self._protection.aperture(name)  # raises ValueError if no pattern matches
        return scan

    @outside_inference_mode()
    def _set_anchors(self, scan: Scan | None = None, *, new_only: bool = False) -> None:
        sites = [
            site
            for name, site in (scan or self._scan).sites.items()
            if self.increment_decay or (self.n_tasks and self._protection.pull(name))
        ]
        self._anchors.set(self.model, sites, new_only=new_only)

    def _make_context(self, version: int) -> Context:
        if self._guards:
            decompose(self._remembered.claimed.conceptors, self._scan.sites, self._protection)
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
            callbacks=self._watch,
        )

    @outside_inference_mode()
    def _changed(self) -> None:
        self._guards.renew()

    def _claims_changed(self) -> None:
        self.quota()  # while matrices are still on the GPU
        self._changed()
        note_tasks(self.model, self.n_tasks)
        # the guards have computed what they need, so large matrices may leave the GPU
        self._remembered.claimed = self._remembered.claimed.stowed()
        if self.n_tasks:
            self._statistics.freeze(self.model)
        else:
            self._statistics.release()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the remembered tasks and their protection if an error occurs inside."""
        before = self._remembered, self._resumed, dict(self._anchors.values)
        try:
            yield
        except BaseException:
            self._remembered, self._resumed, self._anchors.values = before
            self._claims_changed()
            raise

    def _check_attached(self) -> None:
        if not self._attached:
            raise ValueError(
                "this shield was detached and protects nothing; create a new one, Shield(model)"
            )
