"""The methods of `Shield` that report what is protected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from conceptors._internal import checks
from conceptors._internal.batches import Feed
from conceptors.algebra.conceptor import Conceptor, similarity
from conceptors.shield.blocks import Scan
from conceptors.shield.claims import Claims, Remembered, stride
from conceptors.shield.explain import Explanation, explain
from conceptors.shield.moved import Mark
from conceptors.shield.options import Protection
from conceptors.shield.room import stuck_layers
from conceptors.shield.step.guards import Guards
from conceptors.shield.watch import Watch


class Inspection(ABC):
    """The part of `Shield` that reports its state without changing it."""

    _scan: Scan
    _remembered: Remembered
    _guards: Guards
    _protection: Protection
    _watch: Watch
    _attached: bool

    @abstractmethod
    def refresh(self) -> Any:
        """Scan the model again."""

    @abstractmethod
    def _claims_of(
        self,
        batches: Any,
        feed: Feed | None,
        limit: int | None,
        progress: bool,
        soft: bool = False,
    ) -> Claims:
        """Compute what one task's data would claim."""

    @property
    def n_tasks(self) -> int:
        """The number of remembered tasks."""
        return self._remembered.n_tasks

    @property
    def is_settled(self) -> bool:
        """Whether no guarded optimizer has trained the model since the last `remember`."""
        return not self._guards.trained()

    def quota(self) -> dict[str, float]:
        """Return the protected share of each layer's input space, in [0, 1]."""
        return {name: self._remembered.quota(name) for name in self._scan.sites}

    def explain(self) -> Explanation:
        """Return one row per layer that says how the layer is protected; print it as a table.

        `rank` and `quota` say how much of the layer is protected. `passing` is the share of recent
        gradients that was applied; it is None before the first step of a later task. Scans the
        model first, and warns about weights that something other than guarded steps has moved.

        Returns:
            A tuple of `LayerRow`.
        """
        if self._attached:
            self.refresh()
            self._watch.look()
        plans = [guard.prepare() for guard in self._guards]
        free = {
            name: self._guards.context.protected.free(name, site.active())
            for name, site in self._scan.sites.items()
            if site.active()
        }
        ranks = {name: 0 if space is None else space.rank for name, space in free.items()}
        return explain(self._scan, ranks, self.quota(), plans)

    def similarity(
        self,
        batches: Any,
        *,
        feed: Feed | None = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> dict[str, float]:
        """Return the similarity of new data with the remembered tasks: ρ in [0, 1] by layer.

        Call it before training on the data. The higher the similarity, the fewer free directions
        the new task can use. The arguments are those of `remember`.
        """
        claimed = self._remembered.claimed.conceptors
        with self._watch.alone():
            task = self._claims_of(batches, feed, limit, progress)
        return {
            name: float(similarity(conceptor, claimed[name].to(conceptor.device)).mean())
            for name, conceptor in task.conceptors.items()
            if name in claimed
        }

    def strides(
        self,
        batches: Any,
        known: float,
        *,
        feed: Feed | None = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> dict[str, float]:
        """Return factors of at least 1, by layer, for the learning rates of SGD on new data.

        Call it before training on the data. The more of the data lies in protected directions, the
        more the shield shortens steps, and the larger the factor. Larger steps pay only for a task
        that the model can do in part already.

        Args:
            known: the share of the task in [0, 1] that the model can do now, such as its accuracy
                on the new data above chance. At 0 all factors are 1.
        """
        known = checks.number(known, "known", 0.0, 1.0)
        claimed = self._remembered.claimed.conceptors
        with self._watch.alone():
            task = self._claims_of(batches, feed, limit, progress, soft=True)
        return {
            name: float(stride(claimed[name].to(conceptor.device), conceptor, known).amin())
            for name, conceptor in task.conceptors.items()
            if name in claimed
        }

    def mark(self) -> Mark:
        """Record the layers' outputs on inputs like the remembered ones, for `moved_since`."""
        return Mark(self._scan.sites, self._remembered.claimed.conceptors, 0)

    def moved_since(self, mark: Mark) -> dict[str, float]:
        """Return the relative change of each layer's outputs since a mark, |ΔW z| / |W z|.

        With soft conceptors, a new task changes old outputs slightly. This says how much, for
        results that were computed from them (see `Readout.out_of_date`).
        """
        return mark.drifts(self._scan.sites)

    def spectra(self) -> dict[str, Tensor]:
        """Return the singular values of A by layer, descending: `[d]`, or `[groups, d]`."""
        claimed = self._remembered.claimed.conceptors
        return {name: conceptor.singular_values.squeeze(0) for name, conceptor in claimed.items()}

    def conceptors(self) -> dict[str, Conceptor]:
        """Return A, the conceptor of all tasks, by layer (a batch with one conceptor per group)."""
        return dict(self._remembered.claimed.conceptors)

    def tasks(self) -> list[dict[str, Conceptor]]:
        """Return the conceptors of each task by layer; an empty list without `keep_tasks=True`."""
        return [dict(task.conceptors) for task in self._remembered.tasks]

    def report(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        accuracy: Sequence[Sequence[float]] = (),
    ) -> Path:
        """Write an HTML page about this shield, and return its path.

        The page shows how each layer is protected, quotas, spectra, the share of the current
        task's gradients that is applied, the similarity of the tasks (with `keep_tasks=True`), and
        what to do next. Needs the extra `figures`.

        Args:
            path: the file to write.
            title: the heading. Default: the class name of the model.
            accuracy: accuracies to show, in percent: one row after each task, one column per task.
        """
        from conceptors.report import write_shield_page

        shares = {row.layer: row.passing for row in self.explain() if row.passing is not None}
        stuck = list(stuck_layers(shares, self._large()))
        return write_shield_page(self, path, stuck, title, accuracy)  # type: ignore[arg-type]

    def _large(self) -> dict[str, bool]:
        """Return the layers with more than two directions, and whether their aperture is "auto".

        A channel of a norm layer has two directions, and is full after one task.
        """
        claimed = self._remembered.claimed.conceptors
        large = [name for name in self._scan.sites if name in claimed and claimed[name].dim > 2]
        return {name: self._protection.is_auto(name) for name in large}

    def __repr__(self) -> str:
        quota = self.quota()
        mean = sum(quota.values()) / max(1, len(quota))
        layers = f"{len(quota)} layer{'' if len(quota) == 1 else 's'}"
        tasks = f"{self.n_tasks} task{'' if self.n_tasks == 1 else 's'}"
        return f"Shield({layers}, {tasks}, mean quota {mean:.2f})"
