"""What methods in closed form have in common: each subclass has a `Head`, and nothing else."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from conceptors._internal.precision import exactly
from conceptors.estimators.lift import Lift
from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.closed.features import looks
from conceptors.experiments.methods.closed.settings import ClosedSettings
from conceptors.experiments.methods.settings import OwnSettings
from conceptors.experiments.scenarios import Scenario, Split

_FIRST = 10_000  # samples of the first task at most, that features are fixed by
_CHUNK = 4096  # samples that are looked at together
_TESTED = 1000  # and when testing
_MOST = 500_000_000  # numbers of test samples' features that are kept


class Head(nn.Module):
    """What a method keeps of the features of one seed, and the scores that it makes of them.

    Buffers are weights of fixed features; what is learned is in `kept`.
    """

    def __init__(self, scenario: Scenario, settings: Any, seed: int) -> None:
        super().__init__()
        self.looks, self.width = looks(scenario, settings, seed)
        self.settings, self.scenario, self.seed = settings, scenario, seed
        self.classes = scenario.classes
        self.seen = torch.zeros(scenario.classes, dtype=torch.bool)

    # --- what methods say -----------------------------------------------------------------

    def calibrate(self, rows: Tensor) -> None:
        """Fix a lift by features `[n, width]` of the first task."""

    @abstractmethod
    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Learn features `[n, width]` with labels `[n]`: a part of a task."""

    def finish(self) -> None:
        """A task has come to its end."""

    @abstractmethod
    def scores(self, rows: Tensor) -> Tensor:
        """Of all classes `[n, classes]`."""

    @abstractmethod
    def kept(self) -> list[Tensor]:
        """All that is needed to go on with the next task."""

    # --- what all do ----------------------------------------------------------------------

    def fix(self, x: Tensor) -> None:
        """Fix all features by inputs `[n, ...]` of the first task."""
        if isinstance(self.looks, Lift):
            self.looks.calibrate(x.flatten(1))
        self.calibrate(self.looks(x))

    def learn(self, x: Tensor, y: Tensor) -> None:
        """Learn inputs `[n, ...]` with labels `[n]`."""
        self.seen = self.seen.to(y.device)
        self.seen[y] = True
        self.add(self.looks(x), y)

    def forward(self, x: Tensor) -> Tensor:
        """Scores `[n, classes]` of inputs, -∞ for classes that were never seen."""
        return self.answers(self.looks(x))

    def answers(self, rows: Tensor) -> Tensor:
        """The same of features."""
        return self.scores(rows).masked_fill(~self.seen.to(rows.device), -torch.inf)


class ClosedForm(Learner):
    """Learns a task in one pass, each seed for itself."""

    settings_type: ClassVar[type[OwnSettings]] = ClosedSettings
    head: ClassVar[type[Head]]

    def network(self) -> nn.Module:
        made = [self.head(self.scenario, self.settings, 15_485_863 + s) for s in self.seeds]
        self.heads = made
        self._kept: dict[tuple[int, int, int | None], tuple[Split, Tensor, Tensor]] = {}
        return _Heads(made)

    @exactly()
    def learn(self, number: int) -> list[dict[str, Any]]:
        for i, (seed, head) in enumerate(zip(self.seeds, self.heads)):
            split = self.scenario.tasks[number].train.of_seed(i)
            draw = torch.Generator().manual_seed(224_737 * (number + 1) + seed)
            order = torch.randperm(split.counts[0], generator=draw).to(self.device)
            if number == 0:
                head.fix(split.take(order[None, :_FIRST])[0][0])
            for places in order.split(_CHUNK):
                x, y = split.take(places[None])
                head.learn(x[0], y[0])
            head.finish()
            features = [b for b in head.buffers() if b.is_floating_point()]
            self.extras[i]["stored_numbers"] = sum(kept.numel() for kept in head.kept())
            self.extras[i]["lift_numbers"] = sum(b.numel() for b in features)
        return [{"task": number, "step": [], "loss": [], "validation": []} for _ in self.seeds]

    @torch.no_grad()
    @exactly()
    def accuracy(self, split: Split, number: int, limit: int | None = None) -> Tensor:
        """Percent right of every seed `[seeds]`."""
        found = []
        for i, head in enumerate(self.heads):
            rows, labels = self._looked_at(split, i, limit)
            right = 0
            for part, wanted in zip(rows.split(_TESTED), labels.split(_TESTED)):
                scores = self._masked(head.answers(part), number, i)
                right += int((scores.argmax(-1) == wanted).sum())
            found.append(100 * right / len(labels))
        return torch.tensor(found)

    def _looked_at(self, split: Split, seed: int, limit: int | None) -> tuple[Tensor, Tensor]:
        """What a seed sees of all samples, and their labels: the same after every task."""
        key = (id(split), seed, limit)
        if key not in self._kept:
            own = split.of_seed(seed)
            places = torch.arange(own.counts[0], device=self.device)[:limit]
            parts = [own.take(some[None]) for some in places.split(_TESTED)]
            rows = torch.cat([self.heads[seed].looks(x[0]) for x, _ in parts])
            pair = rows, torch.cat([y[0] for _, y in parts])
            if sum(kept.numel() for _, kept, _ in self._kept.values()) + rows.numel() > _MOST:
                return pair
            self._kept[key] = (split, *pair)  # the split too, so that its id stays its own
        return self._kept[key][1:]

    def _masked(self, scores: Tensor, number: int, seed: int) -> Tensor:
        """With one head per task, only its own classes count."""
        classes = self.scenario.tasks[number].classes
        if not self.scenario.heads or classes is None:
            return scores
        return scores.masked_fill(~classes[seed], -torch.inf)


class _Heads(nn.Module):
    """All seeds' heads as one network: `[seeds, n, ...]` to `[seeds, n, classes]`."""

    def __init__(self, heads: list[Head]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([head(rows) for head, rows in zip(self.heads, x)])
