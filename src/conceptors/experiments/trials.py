"""What a search for settings is made of: trials, each scored on validation data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from conceptors.experiments.events import Event, Progress
from conceptors.experiments.experiment import Experiment
from conceptors.experiments.methods import METHODS, OwnSettings, parse_settings
from conceptors.experiments.methods.settings import settings_of_members
from conceptors.experiments.pieces import work_key
from conceptors.experiments.scenarios import SCENARIOS


@dataclass(frozen=True)
class Trial:
    """Some settings of a method, and seeds that learn together."""

    experiment: Experiment
    settings: dict[str, Any]
    seeds: list[int]

    def __str__(self) -> str:
        return in_words(self.settings)

    @property
    def key(self) -> str:
        return work_key(self.tried, self.tried.methods[0], self.seeds, "validation")

    def __call__(self, progress: Progress) -> list[float]:
        """Accuracy of each seed on all tasks' validation samples."""
        return validation_accuracies(self.tried, progress)

    def done(self, number: int, trials: int, score: float) -> Event:
        """The event after the trial of that number, mean over all seeds."""
        return Event(
            "trial",
            self.experiment.methods[0],
            tuple(self.experiment.seeds),
            step=number,
            steps=trials,
            validation=score,
            settings=str(self),
        )

    @property
    def tried(self) -> Experiment:
        """The experiment with these settings and seeds."""
        (method,) = self.experiment.methods
        settings = {**self.experiment.settings}
        settings[method] = {**settings.get(method, {}), **self.settings}
        return replace(self.experiment, settings=settings, seeds=self.seeds)


class TrialsError(RuntimeError):
    """Trials that failed again and again, by their settings; all others are done and written.

    `best` is what `tune` returns, None if there is nothing.
    """

    def __init__(self, failures: dict[str, str], best: dict[str, Any] | None) -> None:
        super().__init__("\n".join(f"{name} failed:\n{why}" for name, why in failures.items()))
        self.failures = failures
        self.best = best


def validation_accuracies(experiment: Experiment, progress: Progress) -> list[float]:
    """Accuracy on all tasks' validation samples after learning all tasks, for each seed.

    0 for seeds that diverged: no setting is worse.
    """
    (method,) = experiment.methods
    device = experiment.check()
    settings = parse_settings(METHODS[method].settings_type, experiment.config(method))
    scores: list[float] = []
    for seeds in experiment.groups(method, experiment.seeds, device):
        scores += _scores(experiment, seeds, settings, device, progress)
    return scores


def scores_of_points(
    experiment: Experiment, points: list[dict[str, Any]], progress: Progress
) -> list[list[float]]:
    """The same for every point, some settings, which all learn together as members of one stack.

    Raises:
        ValueError: points differ in a setting that is one for all members of a stack, or this
            experiment has no stacks.
    """
    (method,) = experiment.methods
    device, seeds = experiment.check(), experiment.seeds
    order = experiment.options.get("class_order", "fixed")
    if not (METHODS[method].stackable and SCENARIOS[experiment.scenario].stackable(order)):
        raise ValueError(f"{method} on {experiment.scenario} cannot be stacked; use search")
    members = []
    for point in points:
        config = Trial(experiment, point, seeds).tried.config(method)
        members += [parse_settings(METHODS[method].settings_type, config)] * len(seeds)
    together = settings_of_members(members)
    found = _scores(experiment, seeds * len(points), together, device, progress)
    return [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]


def _scores(
    experiment: Experiment,
    seeds: list[int],
    settings: OwnSettings,
    device: torch.device,
    progress: Progress,
) -> list[float]:
    """Of seeds that learn together."""
    (method,) = experiment.methods
    scenario = experiment.build(seeds, device)
    torch.manual_seed(seeds[0])
    learner = METHODS[method](scenario, settings, device, progress)
    for number in range(len(scenario.tasks)):
        learner.learn(number)
        if len(learner.diverged) == len(seeds):
            break
    with learner.weights_for_test():
        rows = [learner.accuracy(task.validation, k) for k, task in enumerate(scenario.tasks)]
    sizes = torch.tensor([task.validation.sizes() for task in scenario.tasks])
    weighted = (torch.stack(rows) * sizes).sum(0) / sizes.sum(0)
    weighted[list(learner.diverged)] = 0.0
    found: list[float] = weighted.tolist()
    return found


def in_words(settings: dict[str, Any]) -> str:
    """Settings as they are told.

    >>> in_words({"rate": 0.1, "loss": "bce"})
    'rate=0.1, loss=bce'
    """
    return ", ".join(f"{name}={value}" for name, value in settings.items())
