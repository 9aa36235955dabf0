"""A linear readout in closed form: learns any classes in any order, and forgets none of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from conceptors._internal import checks
from conceptors._internal.batches import (
    Feed,
    check_batches,
    iterate,
    moved,
    undisturbed,
    with_progress,
)
from conceptors._internal.precision import exactly
from conceptors.estimators.ageing import Ageing
from conceptors.estimators.discriminant import likelihoods
from conceptors.estimators.kept import KeepsSums
from conceptors.estimators.lift import Activation, Lift, Scaling, lift_of
from conceptors.estimators.merging import (
    Side,
    agreed,
    all_names,
    check_alike,
    configured,
    fingerprint,
    reduced,
    together,
)
from conceptors.estimators.samples import (
    KINDS,
    backbone_features,
    feature_rows,
    feed_without_labels,
    last_part,
    learnable,
    lifted_rows,
    target_rows,
)
from conceptors.estimators.solve import Solution, solve
from conceptors.estimators.sums import Sums

_ROWS = 8192  # that are lifted at once
_FIRST = 2048  # rows that are waited for, to fix the lift by


class Readout(KeepsSums):
    """Features `[n, in_features]` to scores of all classes `[n, classes]`, or to numbers.

    What is kept of the data are sums over samples (`Sums`), from which ridge regression on all
    samples so far is solved when it is needed. So neither the order of samples, nor how they came
    in batches and tasks, matters.

    Args:
        in_features: width of the features.
        lift: 0 to read the features as they are (shifted and scaled), or a number of random
            features of them (`RandomFeatures`), or a module with `out_features`, like
            `PatchFeatures`. The first data learned fix it: see `calibrate`.
        activation: of the random features, "relu", "tanh" or "fourier".
        classes: refuse labels from here on; by default classes are added as they come.
        regularization: λ of E|y - W h|² + λ |W|², for numbers less their mean; "auto" chooses it
            by generalised cross-validation from the sums.
        weighting: "samples" count equally, or "tasks", which then must be named in `learn`.
        scores: of classes: "regression", about 1 for the right one, or "likelihood", by linear
            discriminant analysis from the same sums: better on features that are read as they are.
        seed: of the random features.

    >>> import torch
    >>> X = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    >>> y = X.abs().argmax(1)                          # 0 to 4, not linear
    >>> readout = Readout(5, lift=500)
    >>> for label in range(5):                         # one class after the other
    ...     _ = readout.learn(X[y == label], y[y == label])
    >>> readout(X).shape, bool((readout.predict(X) == y).float().mean() > 0.9)
    (torch.Size([300, 5]), True)
    """

    def __init__(
        self,
        in_features: int,
        lift: int | nn.Module = 0,
        *,
        activation: Activation = "relu",
        classes: int | None = None,
        regularization: float | Literal["auto"] = "auto",
        weighting: Literal["samples", "tasks"] = "samples",
        scores: Literal["regression", "likelihood"] = "regression",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.in_features = checks.whole(in_features, "in_features", 1)
        self.lift = lift_of(self.in_features, lift, activation, seed)
        if weighting not in ("samples", "tasks"):
            raise ValueError(f"weighting must be 'samples' or 'tasks', got {weighting!r}")
        if scores not in ("regression", "likelihood"):
            raise ValueError(f"scores must be 'regression' or 'likelihood', got {scores!r}")
        checks.whole(seed, "seed", 0)
        self._limit = None if classes is None else checks.whole(classes, "classes", 1)
        self._wanted: float | None = None
        if regularization != "auto":
            self._wanted = checks.number(
                regularization, "regularization", 0.0, 1e300, open_low=True
            )
        self.weighting: Literal["samples", "tasks"] = weighting
        self.scores: Literal["regression", "likelihood"] = scores
        self._solved: Solution | None = None
        self._age = Ageing()

    # --- learning -------------------------------------------------------------------------

    @torch.inference_mode(False)
    def calibrate(self, features: Tensor) -> Self:
        """Fix the lift by these features, once; else the first `learn` does.

        Readouts that are to be added up must be calibrated alike: see `fresh`.
        """
        if self._is_calibrated:
            raise RuntimeError("the lift is fixed already; make a new Readout to fix it anew")
        rows = learnable(self._rows(features))
        if isinstance(self.lift, Lift):
            self.lift.calibrate(rows)
        return self

    @torch.inference_mode(False)  # what it made could not be changed outside of it
    def learn(self, features: Tensor, targets: Tensor, task: str | None = None) -> Self:
        """Learn samples; any batches, any order of classes, any number of calls.

        Args:
            features: `[n, in_features]`.
            targets: labels `[n]` (integers, from 0), or numbers `[n]` or `[n, m]` (floats).
            task: keep the sums of these samples apart under this name, so that `forget` can take
                them off again; that takes as much memory a task as everything else together.

        Raises:
            ValueError: not finite, no samples, another width or device, labels out of range;
                nothing was learned.
        """
        rows = learnable(self._rows(features))
        kind, y = target_rows(targets, rows, self._kind, self._outputs(), self._limit)
        if task is not None and (not isinstance(task, str) or not task):
            raise TypeError(f"task must be a name, got {task!r}")
        if task is None and self.weighting == "tasks":
            raise ValueError("with weighting='tasks', learn needs the name of the task: task='...'")
        for sums in (self._sums, *self._tasks.values()):
            sums.check()
        parts = rows.split(_ROWS)
        first = self._first_lifted(parts[0], rows)
        sums = self._sums_of(task, first.shape[1])
        self._kind, self._solved = kind, None
        with sums.whole():
            sums.grow(int(y.max()) + 1 if y.ndim == 1 else y.shape[1])
            for i, (part, own) in enumerate(zip(parts, y.split(_ROWS))):
                sums.add(self._lifted(part) if i else first, own)
        return self

    def _first_lifted(self, part: Tensor, rows: Tensor) -> Tensor:
        """The first part of rows, before anything is changed: a lift that fails leaves no trace."""
        new = not self._is_calibrated
        if new:
            self.calibrate(rows)
        try:
            return self._lifted(part)
        except BaseException:
            if new and isinstance(self.lift, Lift):
                self.lift.reset()
            raise

    def learn_from(
        self,
        backbone: nn.Module,
        batches: Any,
        *,
        task: str | None = None,
        feed: Feed | None = None,
        target: Callable[[Any], Tensor] | None = None,
        shield: Any = None,
        progress: bool = False,
    ) -> Self:
        """Learn from what a network makes of batches, in one pass without gradients.

        Args:
            backbone: gives features `[n, in_features]`; it runs in evaluation mode.
            batches: a DataLoader or other iterable of batches, usually (inputs, targets); or
                mappings, whose "labels" the backbone does not get.
            task: see `learn`.
            feed: how the backbone takes a batch; by default its first part.
            target: how a batch tells its targets; by default its last part, or "labels".
            shield: that protects the backbone; see `out_of_date`.
            progress: show a bar.

        Raises:
            ValueError: as `learn`, or no samples; nothing was learned of any batch.
        """
        check_batches(batches, "learn_from")
        feed, target = feed or feed_without_labels, target or last_part
        waiting: list[tuple[Tensor, Tensor]] = []
        seen = 0
        with self._one_pass(task), undisturbed(backbone):
            for batch in with_progress(iterate(batches, None, "learn_from"), progress, "learn"):
                features = backbone_features(feed(backbone, batch)).to(self._here.device)
                waiting.append((self._rows(features), moved(target(batch), self._here.device)))
                seen += len(features)
                if self._is_calibrated or seen >= _FIRST:
                    waiting = self._learn_all(waiting, task)
            self._learn_all(waiting, task)
            if not seen:
                raise ValueError("learn_from got no samples: the loader is empty or used up")
        if shield is not None:
            self._age.renew(shield)
        return self

    def _learn_all(self, pairs: list[tuple[Tensor, Tensor]], task: str | None) -> list[Any]:
        """All pairs, with a lift that is fixed by all of them; none are left."""
        if pairs and not self._is_calibrated:
            self.calibrate(torch.cat([rows for rows, _ in pairs]))
        for rows, targets in pairs:
            self.learn(rows, targets, task)
        return []

    def out_of_date(self, shield: Any) -> dict[str, float]:
        """How far layers answer otherwise, by now, to what was remembered when sums were made.

        One number a layer: |ΔW z| / |W z| over inputs z like those that the shield remembers,
        added up from one `learn_from(..., shield=shield)` to the next: 0.1 says that old features
        changed by up to a tenth, which the sums do not know. Call it after `shield.remember`. Not
        saved: a loaded readout counts anew. 0 for hard conceptors: what they left out is not seen.
        """
        return self._age.since(shield)

    def forget(self, task: str) -> Self:
        """Take off all that was learned under this name, as if it had never been seen."""
        if task not in self._tasks:
            kept = ", ".join(map(repr, self._tasks)) or "none"
            raise ValueError(
                f"the sums of task {task!r} were not kept (kept: {kept}); name tasks as they are "
                f"learned: learn(..., task={task!r})"
            )
        del self._tasks[task]
        self._solved = None
        if not self._tasks and not self._sums.dim:
            self._kind = 0  # anything may be learned again
        return self

    # --- what is known --------------------------------------------------------------------

    @property
    def tasks(self) -> list[str]:
        """Names whose sums are kept."""
        return list(self._tasks)

    @property
    def n_samples(self) -> int:
        """Samples learned so far."""
        return round(sum(sums.count for sums in (self._sums, *self._tasks.values())))

    @property
    def counts(self) -> Tensor:
        """Samples of each class `[classes]`."""
        if self._kind and KINDS[self._kind] != "labels":
            raise RuntimeError("numbers were learned, not classes")
        found = torch.zeros(self._outputs(), dtype=torch.float64, device=self._here.device)
        for sums in (self._sums, *self._tasks.values()):
            found[: sums.outputs] += sums.squares.to(found.device)
        return found.round().long()

    @property
    def regularization(self) -> float:
        """λ of the present solution."""
        return self.solution.regularization

    @property
    def quota(self) -> float:
        """Share of the features' space that the data claim at this λ, in [0, 1]."""
        return self.solution.quota

    @property
    def solution(self) -> Solution:
        """Ridge regression on all samples so far; solved when first asked for."""
        if self._solved is None:
            with torch.inference_mode(False):  # else gradients could not pass later
                self._solved = self._solve(self._total())
        return self._solved

    def _solve(self, total: Sums) -> Solution:
        if KINDS[self._kind] != "labels":
            return solve(total, self._wanted, around_mean=True)
        found = solve(total, self._wanted, largest=True)
        if self.scores == "likelihood":
            found = found._replace(weights=likelihoods(total, found))
        return found

    def forward(self, features: Tensor) -> Tensor:
        """Scores of all classes `[n, classes]`, or numbers."""
        solution = self.solution
        h = self.lift(self._rows(features))
        weights = solution.weights.to(h.dtype)
        scores: Tensor = nn.functional.linear(h, weights[:, :-1], weights[:, -1])
        return scores[:, 0] if KINDS[self._kind] == "number" else scores

    @torch.no_grad()
    def predict(self, features: Tensor) -> Tensor:
        """Labels `[n]`, of classes that were seen; numbers in regression."""
        scores: Tensor = self(features)
        if KINDS[self._kind] != "labels":
            return scores
        return scores.masked_fill(self.counts.to(scores.device) == 0, -torch.inf).argmax(1)

    def export(self) -> nn.Module:
        """The same as a plain `nn.Linear`, after the lift if there is one; no sums inside.

        One number a sample comes out as `[n, 1]`.
        """
        weights = self.solution.weights
        linear = nn.Linear(weights.shape[1] - 1, len(weights), device=weights.device)
        weight, bias = weights[:, :-1], weights[:, -1]
        if isinstance(self.lift, Scaling):
            weight = weight * self.lift.scale
            bias = bias - weight @ self.lift.center.double()
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        linear.requires_grad_(False)
        if isinstance(self.lift, Scaling):
            return linear.eval()
        return nn.Sequential(copy.deepcopy(self.lift), linear).eval()

    # --- many of them ---------------------------------------------------------------------

    def fresh(self) -> Readout:
        """One that has learned nothing, with the same lift: for other machines, to be added."""
        return self._with(copy.deepcopy(self.lift))

    def _with(self, lift: nn.Module) -> Readout:
        made = Readout(
            self.in_features,
            lift,
            classes=self._limit,
            regularization="auto" if self._wanted is None else self._wanted,
            weighting=self.weighting,
            scores=self.scores,
        )
        return made.to(self._here.device)

    def __add__(self, other: Readout) -> Readout:
        """What one has learned and what the other has, together."""
        if not isinstance(other, Readout):
            return NotImplemented
        first = (self, other)[check_alike([self._side(), other._side()])]
        made = self._with(copy.deepcopy(first.lift))
        made._kind = first._kind
        if self._limit and other._limit != self._limit:
            made._limit = other._limit and max(self._limit, other._limit)
        made._sums = together([self._sums, other._sums])
        for name in [*self._tasks, *(name for name in other._tasks if name not in self._tasks)]:
            parts = [side._tasks[name] for side in (self, other) if name in side._tasks]
            made._tasks[name] = together(parts)
        return made

    def merged(self, group: Any = None) -> Readout:
        """What all processes of a `torch.distributed` group have learned, together.

        Every process calls it, and gets the same; its own sums stay as they are.
        """
        kind, lift = agreed(self._side(), self.lift, group)
        made = self._with(lift)
        made._kind = kind
        made._sums = reduced(self._sums, self._here.device, group)
        for name in all_names(self._tasks, group):
            made._tasks[name] = reduced(self._tasks.get(name, Sums(0)), self._here.device, group)
        return made

    def _side(self) -> Side:
        torn = any(sums.is_torn for sums in (self._sums, *self._tasks.values()))
        marks = configured(self.lift), fingerprint(self.lift)
        return Side(self._kind, self.weighting, *marks, torn)

    # --- checks ---------------------------------------------------------------------------

    @property
    def _is_calibrated(self) -> bool:
        return not isinstance(self.lift, Lift) or self.lift.is_calibrated

    def _rows(self, features: Tensor) -> Tensor:
        return feature_rows(features, self.in_features, self._here.device)

    def _lifted(self, rows: Tensor) -> Tensor:
        """[h; 1] `[n, out_features + 1]`."""
        with exactly():
            width: Any = self.lift.out_features
            return lifted_rows(self.lift(rows), rows, width)

    def extra_repr(self) -> str:
        learned = f"{self.n_samples} samples, {self._outputs()} outputs" if self._kind else "new"
        return f"{self.in_features}, {learned}"
