"""A linear readout in closed form that learns any classes in any order and forgets none."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from conceptors._internal import checks
from conceptors._internal.batches import Feed, check_batches, iterate, moved, undisturbed
from conceptors._internal.precision import exactly
from conceptors._internal.storage import digest
from conceptors.readout.features import Activation, Lift, RandomFeatures, Scaling, SideBySide
from conceptors.readout.samples import (
    class_labels,
    feature_rows,
    feed_without_labels,
    last_part,
    learnable,
)
from conceptors.readout.solve import Solution, likelihoods, solve
from conceptors.readout.sums import Sums

_ROWS = 8192  # rows that are lifted at once
_CALIBRATION_ROWS = 2048  # rows that `learn_from` collects to calibrate the lift


class Readout(nn.Module):
    """Features `[n, in_features]` to scores of all classes `[n, classes]`.

    The weights minimise E|y - W b|² + λ |W|² over all samples learned so far, with b = [h; 1], h
    the lifted features and y one-hot labels. Only sums over samples are stored, so the order of
    samples and their division into batches and tasks do not matter.

    Args:
        in_features: number of features d of each sample.
        lift: 0 to use the features themselves (shifted and scaled), a number of random features,
            or a lift such as `PatchFeatures`. The first samples learned calibrate it.
        activation: activation of the random features: "relu", "tanh" or "fourier".
        regularization: λ. "auto" chooses it by generalised cross-validation from the sums.
        scores: scores of classes: "regression", about 1 for the right class, or "likelihood", from
            linear discriminant analysis on the same sums.
        seed: seed of the random features.

    >>> import torch
    >>> X = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    >>> y = X.abs().argmax(1)                          # 0 to 4, not linear
    >>> readout = Readout(5, lift=500)
    >>> for label in range(5):                         # one class after the other
    ...     _ = readout.learn(X[y == label], y[y == label])
    >>> readout(X).shape, bool((readout.predict(X) == y).float().mean() > 0.9)
    (torch.Size([300, 5]), True)
    """

    _here: Tensor  # on the module's device

    def __init__(
        self,
        in_features: int,
        lift: int | Lift = 0,
        *,
        activation: Activation = "relu",
        regularization: float | Literal["auto"] = "auto",
        scores: Literal["regression", "likelihood"] = "regression",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.in_features = checks.whole(in_features, "in_features", 1)
        if not isinstance(lift, Lift):
            count = checks.whole(lift, "lift", 0)
            lift = Scaling(in_features)
            if count:
                lift = RandomFeatures(in_features, count, activation, seed=seed)
        if lift.in_features != in_features:
            raise ValueError(
                f"lift takes {lift.in_features} features, not {in_features}; make them equal"
            )
        self.lift = lift
        self.register_buffer("_here", torch.empty(0), persistent=False)
        self._sums: Sums | None = None
        self._solved: Solution | None = None
        if scores not in ("regression", "likelihood"):
            raise ValueError(f"scores must be 'regression' or 'likelihood', got {scores!r}")
        self.scores: Literal["regression", "likelihood"] = scores
        self._given: float | None = None
        if regularization != "auto":
            self._given = checks.number(regularization, "regularization", 0, 1e300, open_low=True)

    @torch.inference_mode(False)
    def calibrate(self, features: Tensor) -> Self:
        """Calibrate the lift with features `[n, d]`. Otherwise the first `learn` does it."""
        if self.lift.is_calibrated:
            raise RuntimeError("the lift is calibrated already; create a new Readout for another")
        self.lift.calibrate(learnable(self._rows(features)))
        return self

    def learn(self, features: Tensor, labels: Tensor) -> Self:
        """Learn a batch of samples. If the call fails, nothing is learned.

        Args:
            features: `[n, in_features]`.
            labels: `[n]`, integers from 0.
        """
        return self._learn([(features, labels)])

    def learn_from(
        self,
        backbone: nn.Module,
        batches: Any,
        *,
        feed: Feed | None = None,
        target: Callable[[Any], Tensor] | None = None,
    ) -> Self:
        """Learn from a network's outputs for batches, in one pass without gradients.

        Args:
            backbone: network that returns features `[n, in_features]`; it runs in evaluation mode.
            batches: a DataLoader or other iterable of batches: (inputs, targets), or mappings,
                whose "labels" are not passed to the backbone.
            feed: function that calls the backbone with a batch; by default with its first element.
            target: function that returns the labels of a batch; by default its last element or
                "labels".
        """
        check_batches(batches, "learn_from")
        feed, target = feed or feed_without_labels, target or last_part
        here, before = self._here.device, self.n_samples
        with undisturbed(backbone):
            self._learn(
                (moved(feed(backbone, batch), here), moved(target(batch), here))
                for batch in iterate(batches, None, "learn_from")
            )
        if self.n_samples == before:
            raise ValueError("the loader is empty or used up; pass a DataLoader or a list")
        return self

    @torch.inference_mode(False)  # tensors created inside could not be changed outside
    def _learn(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Self:
        """Learn all pairs of features and labels, or nothing if anything fails."""
        lift_state = None if self.lift.is_calibrated else copy.deepcopy(self.lift.state_dict())
        sums = self._new_sums()
        try:
            for rows, labels in self._checked_parts(pairs):
                sums.add(self._lifted(rows), labels)
            if self._sums:
                sums.include(self._sums)
        except BaseException:
            if lift_state is not None:
                self.lift.load_state_dict(lift_state)
            raise
        if sums.count:
            self._sums, self._solved = sums, None
        return self

    def _checked_parts(
        self, pairs: Iterable[tuple[Tensor, Tensor]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and labels, in parts. The first rows calibrate the lift."""
        pairs, first = iter(pairs), list[tuple[Tensor, Tensor]]()
        if not self.lift.is_calibrated:
            for features, labels in pairs:
                first.append((self._rows(features), labels))
                if sum(len(rows) for rows, _ in first) >= _CALIBRATION_ROWS:
                    break
            if first:
                self.calibrate(torch.cat([rows for rows, _ in first]))
        for features, labels in chain(first, pairs):
            rows = learnable(self._rows(features))
            yield from zip(rows.split(_ROWS), class_labels(labels, rows).split(_ROWS))

    @property
    def n_samples(self) -> int:
        """Number of samples learned so far."""
        return round(self._sums.count) if self._sums else 0

    @property
    def counts(self) -> Tensor:
        """Number of samples of each class `[classes]`."""
        if self._sums is None:
            return torch.zeros(0, dtype=torch.long, device=self._here.device)
        return self._sums.squares.round().long()

    @property
    def solution(self) -> Solution:
        """Weights, λ and quota of all samples so far, solved when they are first needed."""
        if self._sums is None:
            raise RuntimeError("nothing was learned yet; call learn(features, labels) first")
        if self._solved is None:
            first = self.lift.widths[0] if isinstance(self.lift, SideBySide) else 0
            with torch.inference_mode(False):  # otherwise gradients could not pass later
                solution = solve(self._sums, self._given, largest=True, first=first)
                if self.scores == "likelihood":
                    solution = solution._replace(weights=likelihoods(self._sums, solution))
            self._solved = solution
        return self._solved

    def forward(self, features: Tensor) -> Tensor:
        """Scores of all classes `[n, classes]`."""
        solution = self.solution
        h = self.lift(self._rows(features))
        weights = solution.weights.to(h.dtype)
        scores: Tensor = nn.functional.linear(h, weights[:, :-1], weights[:, -1])
        return scores

    @torch.no_grad()
    def predict(self, features: Tensor) -> Tensor:
        """Predicted labels `[n]` among the classes seen so far, for finite features."""
        scores: Tensor = self(checks.finite(self._rows(features), "features"))
        return scores.masked_fill(self.counts.to(scores.device) == 0, -torch.inf).argmax(1)

    def export(self) -> nn.Sequential:
        """Return the lift and a plain `nn.Linear`, with the same scores but without the sums."""
        weights = self.solution.weights
        linear = nn.Linear(self.lift.out_features, len(weights), device=weights.device)
        linear.load_state_dict({"weight": weights[:, :-1], "bias": weights[:, -1]})
        return nn.Sequential(copy.deepcopy(self.lift), linear).requires_grad_(False).eval()

    def fresh(self) -> Readout:
        """Return an empty readout with the same lift, whose sums can be added to this one's."""
        return Readout(
            self.in_features,
            copy.deepcopy(self.lift),
            regularization="auto" if self._given is None else self._given,
            scores=self.scores,
        ).to(self._here.device)

    def __add__(self, other: Readout) -> Readout:
        """Return a readout that has learned the samples of both."""
        if not isinstance(other, Readout):
            return NotImplemented
        learned = [readout for readout in (self, other) if readout._sums]
        if len({readout._lift_digest() for readout in learned}) > 1:
            raise ValueError(
                "these readouts have different lifts, so their sums cannot be added; calibrate "
                "one, and create the others with readout.fresh() or load its state into them"
            )
        total = (*learned, self)[0].fresh()
        for sums in (readout._sums for readout in learned if readout._sums):
            total._sums = total._sums or total._new_sums()
            total._sums.include(sums)
        return total

    def _lift_digest(self) -> str:
        """A fingerprint that lifts with the same features share."""
        state = {name: value.cpu() for name, value in self.lift.state_dict().items()}
        return digest(state, {"lift": repr(self.lift)})

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Change the device only: `.half()` on a surrounding model must not round the sums."""
        device = fn(self._here).device

        def move(tensor: Tensor) -> Tensor:
            return fn(tensor) if tensor.is_meta else tensor.to(device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        if self._sums:
            self._sums.to(device)
        self._solved = None
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "options"] = torch.tensor(list(repr(self.lift).encode())).byte()
        if self._sums:
            for name, value in self._sums.tensors().items():  # `learn` changes them in place
                destination[f"{prefix}sums.{name}"] = value.clone()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Load all or nothing. The last arguments are missing keys, unexpected keys and errors."""
        keys = [key for key in state_dict if key.startswith(prefix)]
        state = {key.removeprefix(prefix): state_dict.pop(key) for key in keys}
        if not state:
            args[-3].append(prefix + "options")
            return
        try:
            sums = self._read(state)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            args[-1].append(f"{prefix}saved sums do not fit: {error}; load another checkpoint")
            return
        self._sums, self._solved = sums, None
        state_dict.update({prefix + key: value for key, value in state.items()})
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _read(self, state: dict[str, Any]) -> Sums | None:
        """Pop the options and the sums from a saved state, and check the rest."""
        saved_lift, lift_name = bytes(state.pop("options").tolist()).decode(), repr(self.lift)
        if saved_lift != lift_name:
            raise ValueError(f"they belong to the lift {saved_lift:.200}, not to {lift_name}")
        names = [name for name in state if name.startswith("sums.")]
        tensors = {name.removeprefix("sums."): state.pop(name) for name in names}
        lift = copy.deepcopy(self.lift)
        lift.load_state_dict({name.removeprefix("lift."): state[name] for name in state})
        if not all(bool(value.isfinite().all()) for value in lift.state_dict().values()):
            raise ValueError("the lift has entries that are not finite")
        if not tensors:
            return None
        if not lift.is_calibrated:
            raise ValueError("the lift is not calibrated")
        sums = Sums.from_tensors(tensors, lift.out_features + 1, self._here.device)
        ones = float(sums.gram[-1, -1])
        if abs(ones - sums.count) > 1e-6 * sums.count:
            raise ValueError(f"the sums are of {ones:g} samples, but their count is {sums.count:g}")
        return sums

    def _rows(self, features: Tensor) -> Tensor:
        return feature_rows(features, self.in_features, self._here.device)

    def _new_sums(self) -> Sums:
        return Sums(self.lift.out_features + 1, device=self._here.device)

    def _lifted(self, rows: Tensor) -> Tensor:
        """[h; 1] `[n, out_features + 1]`."""
        with exactly():
            h = self.lift(rows)
        return torch.cat([h, torch.ones_like(h[:, :1])], 1)
