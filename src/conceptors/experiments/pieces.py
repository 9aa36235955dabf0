"""What an experiment is cut into: pieces that can be done anywhere, in any order."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from conceptors.experiments.events import Event, Progress, name_seeds
from conceptors.experiments.experiment import Experiment
from conceptors.experiments.machine import environment
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.results import Failure, Run, measures

_TESTED_AHEAD = 20  # tasks up to which those to come are tested too: it is half of the testing


@dataclass(frozen=True)
class Piece:
    """One method, and seeds that learn together."""

    experiment: Experiment
    method: str
    seeds: list[int]

    def __str__(self) -> str:
        return f"{self.experiment.scenario}, {self.method} {name_seeds(tuple(self.seeds))}"

    @property
    def key(self) -> str:
        return work_key(self.experiment, self.method, self.seeds)

    def __call__(self, progress: Progress) -> dict[str, Any]:
        """Learn all tasks: their names, a run or a failure of each seed, and the machine it was on.

        Seeds that diverge do not stop the others.
        """
        device = self.experiment.check()
        kind = METHODS[self.method]
        config = self.experiment.config(self.method)
        scenario = self.experiment.build(self.seeds, device)
        started = time.perf_counter()
        torch.manual_seed(self.seeds[0])
        learner = kind(scenario, parse_settings(kind.settings_type, config), device, progress)
        learner.replay = self.experiment.replay
        count = len(self.seeds)
        accuracy: list[list[list[float]]] = [[] for _ in range(count)]
        history: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        sizes = [[task.test.sizes()[i] for task in scenario.tasks] for i in range(count)]
        for number in range(len(scenario.tasks)):
            for past, new in zip(history, learner.learn(number)):
                past.append(new)
            going = [i for i in range(count) if i not in learner.diverged]
            if not going:
                break
            known = number + 1 if len(scenario.tasks) > _TESTED_AHEAD else None
            for rows, row in zip(accuracy, learner.test(known).tolist()):
                rows.append([round(value, 4) for value in row])
            progress(self._task_done(number, going, [rows[-1] for rows in accuracy], sizes))
        seconds = (time.perf_counter() - started) / count
        where = environment(device)
        made: dict[str, Any] = {"machine": where["device_name"], "together": count}
        if self.experiment.shared:
            made["shared"] = True
        runs = [
            Run(
                method=self.method,
                seed=seed,
                accuracy=accuracy[i],
                **measures(accuracy[i], sizes[i]),
                seconds=round(seconds, 3),
                config=config,
                extras={**made, "history": history[i], **learner.extras[i]},
            )
            for i, seed in enumerate(self.seeds)
            if i not in learner.diverged
        ]
        failed = [
            Failure(self.method, self.seeds[i], f"diverged in {where}", config)
            for i, where in sorted(learner.diverged.items())
        ]
        return {
            "task_names": [task.name for task in scenario.tasks],
            "runs": [run.to_json() for run in runs],
            "failed": [failure.to_json() for failure in failed],
            "environment": where,
        }

    def _task_done(
        self, number: int, going: list[int], rows: list[list[float]], sizes: list[list[int]]
    ) -> Event:
        """The event after a task, from accuracies and numbers of test samples of all seeds.

        It tells of seeds that are going.
        """
        upto = number + 1
        so_far = [
            sum(a * n for a, n in zip(rows[i][:upto], sizes[i])) / sum(sizes[i][:upto])
            for i in going
        ]
        told = tuple(rows[i] for i in going)
        return Event(
            "task",
            self.method,
            tuple(self.seeds[i] for i in going),
            upto,
            len(sizes[0]),
            accuracy=statistics.mean(row[number] for row in told),
            accuracy_so_far=statistics.mean(so_far),
            rows=told,
        )


def work_key(experiment: Experiment, method: str, seeds: list[int], purpose: str = "run") -> str:
    """A file name for some work, the same whenever all that it depends on is the same."""
    alone = replace(experiment, methods=[method])  # others may come and go
    text = json.dumps([alone.identity(), seeds, purpose], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{experiment.scenario}-{method}-{seeds[0]}-{digest}"
