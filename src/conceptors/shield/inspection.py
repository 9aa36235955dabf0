"""What a shield can be asked."""

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
from conceptors.shield.claims import Claims, Remembered
from conceptors.shield.explain import Explanation, explain
from conceptors.shield.moved import Mark
from conceptors.shield.novelty import stride
from conceptors.shield.options import Protection
from conceptors.shield.room import stuck_layers
from conceptors.shield.step.guards import Guards
from conceptors.shield.watch import Watch


class Inspection(ABC):
    """Reads what a shield remembers and does, and changes nothing."""

    _scan: Scan
    _remembered: Remembered
    _guards: Guards
    _protection: Protection
    _watch: Watch
    _attached: bool

    @abstractmethod
    def refresh(self) -> Any:
        """Look at the model again."""

    @abstractmethod
    def _claims_of(
        self,
        batches: Any,
        feed: Feed | None,
        limit: int | None,
        progress: bool,
        soft: bool = False,
    ) -> Claims:
        """What one task's data would claim."""

    @property
    def n_tasks(self) -> int:
        """How many tasks are remembered."""
        return self._remembered.n_tasks

    @property
    def is_settled(self) -> bool:
        """Whether no guarded step was made since a task was last remembered."""
        return not self._guards.trained()

    def quota(self) -> dict[str, float]:
        """How full each layer is: the share of its input space claimed so far, in [0, 1]."""
        return {name: self._remembered.quota(name) for name in self._scan.sites}

    def explain(self) -> Explanation:
        """What is done where: one row per layer, to read as data or to print as a table.

        Rank and quota tell how much is claimed; `passing` is the share of what the recent steps
        wanted to change that was let through, None before the first step of a later task. Looks at
        the model again first, and warns of weights that moved beside guarded steps.
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
        """How much new data overlaps, layer by layer, with what is remembered: ρ in [0, 1].

        A forecast before training on it: the higher, the less free space the new task can use.
        """
        held = self._remembered.claimed.conceptors
        with self._watch.alone():
            task = self._claims_of(batches, feed, limit, progress)
        return {
            name: float(similarity(conceptor, held[name].to(conceptor.device)).mean())
            for name, conceptor in task.conceptors.items()
            if name in held
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
        """How much longer steps of SGD may be on new data, layer by layer: numbers from 1.

        To be asked before training on it, and multiplied into the learning rates. The more of the
        data lies in claimed space, the more the shield shortens steps, and the longer they may be.
        That pays only for a task that the model can do in part already.

        Args:
            known: the share in [0, 1] that it can do, like its accuracy on the new data now (less
                what guessing would give). At 0 all strides are 1.
        """
        known = checks.number(known, "known", 0.0, 1.0)
        held = self._remembered.claimed.conceptors
        with self._watch.alone():
            task = self._claims_of(batches, feed, limit, progress, soft=True)
        return {
            name: float(stride(held[name].to(conceptor.device), conceptor, known).amin())
            for name, conceptor in task.conceptors.items()
            if name in held
        }

    def mark(self) -> Mark:
        """How layers answer now to what is remembered, to be compared later: see `moved_since`."""
        return Mark(self._scan.sites, self._remembered.claimed.conceptors, 0)

    def moved_since(self, mark: Mark) -> dict[str, float]:
        """How far layers answer otherwise by now to what was remembered then, |ΔW z| / |W z|.

        Soft conceptors let a new task change old answers a little; this says how much, for
        everything that was computed from them (see `Readout.out_of_date`).
        """
        return mark.drifts(self._scan.sites)

    def spectra(self) -> dict[str, Tensor]:
        """Singular values of A, layer by layer, descending: `[d]`, or `[groups, d]`."""
        held = self._remembered.claimed.conceptors
        return {name: conceptor.singular_values.squeeze(0) for name, conceptor in held.items()}

    def conceptors(self) -> dict[str, Conceptor]:
        """A, the space claimed so far, layer by layer (a batch of one conceptor a group)."""
        return dict(self._remembered.claimed.conceptors)

    def tasks(self) -> list[dict[str, Conceptor]]:
        """Every task's own conceptors, layer by layer, where `keep_tasks` is on; else nothing."""
        return [dict(task.conceptors) for task in self._remembered.tasks]

    def report(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        accuracy: Sequence[Sequence[float]] = (),
    ) -> Path:
        """Write a page about this shield, one HTML file, and return its path.

        The page shows what happens in each layer, quotas, spectra, how much of the current task
        passes, the similarity of the tasks (with `keep_tasks=True`), and what to do next. Needs
        the extra `figures`.

        Args:
            path: the file.
            title: the heading; the class name of the model by default.
            accuracy: accuracies to show, in percent: one row after each task, one column per task.
        """
        from conceptors.report import write_shield_page

        shares = {row.layer: row.passing for row in self.explain() if row.passing is not None}
        stuck = list(stuck_layers(shares, self._large()))
        return write_shield_page(self, path, stuck, title, accuracy)  # type: ignore[arg-type]

    def _large(self) -> dict[str, bool]:
        """Layers with more than two directions, and whether these stay soft by themselves.

        A channel of a norm layer has two, and is full after one task by its nature.
        """
        held = self._remembered.claimed.conceptors
        large = [name for name in self._scan.sites if name in held and held[name].dim > 2]
        return {name: self._protection.is_auto(name) for name in large}

    def __repr__(self) -> str:
        quota = self.quota()
        mean = sum(quota.values()) / max(1, len(quota))
        layers = f"{len(quota)} layer{'' if len(quota) == 1 else 's'}"
        tasks = f"{self.n_tasks} task{'' if self.n_tasks == 1 else 's'}"
        return f"Shield({layers}, {tasks}, mean quota {mean:.2f})"
