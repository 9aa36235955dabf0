"""Where the time of a row of the comparison goes: steps, tests, what comes between tasks; kernels.

    python experiments/where_time_goes.py permuted-mnist-100 --method cab --seeds 10 --device cuda

Learns the first tasks of a benchmark with its settings, all seeds at once, and writes a table of
seconds for every task (the first of them is left out: it pays for warming up), what all tasks would
take, and on a GPU the kernels of a few steps. Test data is looked at for its time alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from conceptors.experiments.benchmarks import BENCHMARKS
from conceptors.experiments.compare import Cell, How, experiment
from conceptors.experiments.events import quiet
from conceptors.experiments.machine import environment
from conceptors.experiments.methods import METHODS, Learner, Settings, parse_settings

_KERNELS = 20  # that are listed
_PROFILED = 40  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("row", choices=list(BENCHMARKS))
    parser.add_argument("--method", default="cab", choices=trained_ones())
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=4, help="to learn (default 4)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    cell = Cell(BENCHMARKS[given.row], given.method, given.seeds)
    learner = build(cell, given.device)
    tasks = len(learner.scenario.tasks)
    parts = [timed_task(learner, number) for number in range(min(given.tasks, tasks))]
    timed = parts[1:] or parts
    mean = {name: sum(part[name] for part in timed) / len(timed) for name in timed[0]}
    # a test of all tasks after every one
    mean["test of one task"] = mean.pop("test")
    whole = {name: seconds * tasks for name, seconds in mean.items()}
    whole["tests"] = whole.pop("test of one task") * (tasks + 1) / 2
    print(f"{cell}, {given.seeds} seeds at once: seconds of a task")
    for name, seconds in mean.items():
        print(f"  {name:<24}{seconds:9.3f}")
    print(f"all {tasks} tasks: {sum(whole.values()):.0f} s")
    for name, seconds in whole.items():
        print(f"  {name:<24}{seconds:9.1f}")
    kernels = profiled(cell, given.device) if learner.device.type == "cuda" else []
    for kernel in kernels:
        print(f"  {kernel['share']:5.1%} {kernel['microseconds']:9.1f} µs  {kernel['name'][:100]}")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "row": given.row,
            "method": given.method,
            "seeds": given.seeds,
            "seconds_of_a_task": mean,
            "seconds_of_all": whole,
            "kernels_of_a_step": kernels,
            "environment": environment(learner.device),
        }
        given.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def trained_ones() -> list[str]:
    return [name for name, kind in METHODS.items() if issubclass(kind.settings_type, Settings)]


def build(cell: Cell, device: str, **short: Any) -> Learner:
    """A learner of all seeds at once."""
    wanted, kind = experiment(cell, How(device)), METHODS[cell.method]
    where = wanted.check()
    settings = parse_settings(kind.settings_type, {**wanted.config(cell.method), **short})
    torch.manual_seed(0)
    return kind(wanted.build(wanted.seeds, where), settings, where, quiet)


def timed_task(learner: Learner, number: int) -> dict[str, float]:
    """Seconds of the parts of a task."""
    spent = {"what comes after steps": 0.0, "validation": 0.0}
    watched(learner, "end_task", spent, "what comes after steps")
    watched(learner, "evaluate", spent, "validation")
    steps = Sum(learner)
    learner.clock = steps  # type: ignore[assignment]
    whole = seconds_of(learner, lambda: learner.learn(number))
    del learner.end_task, learner.evaluate  # type: ignore[attr-defined]
    spent["steps"] = steps.seconds
    spent["what comes before steps"] = whole - sum(spent.values())
    tested = learner.scenario.tasks[number].test
    spent["test"] = seconds_of(learner, lambda: learner.accuracy(tested, number))
    return spent


class Sum:
    """A clock that counts all steps from the first to the last."""

    def __init__(self, learner: Learner) -> None:
        self._learner, self._begun = learner, 0.0
        self.seconds = 0.0

    def go(self, step: int) -> None:
        if step == 1 or not self._begun:
            self._begun = now(self._learner)

    def stop(self, step: int) -> None:
        if self._begun:
            self.seconds += now(self._learner) - self._begun
        self._begun = 0.0


def watched(learner: Learner, name: str, spent: dict[str, float], part: str) -> None:
    """Count a method's time."""
    before = getattr(type(learner), name).__get__(learner)

    def call(*args: Any) -> Any:
        begun = now(learner)
        try:
            return before(*args)
        finally:
            spent[part] += now(learner) - begun

    setattr(learner, name, call)


def seconds_of(learner: Learner, work: Callable[[], Any]) -> float:
    begun = now(learner)
    work()
    return now(learner) - begun


def now(learner: Learner) -> float:
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
    return time.perf_counter()


def profiled(cell: Cell, device: str) -> list[dict[str, Any]]:
    """Kernels of a step in the second task, the longest first; the task's beginning is among them
    with as much as it costs a step of so few.
    """
    learner = build(cell, device, steps=_PROFILED, check_every=_PROFILED, validation=100)
    learner.learn(0)
    profiler: Any = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    learner.end_task = lambda number: None  # type: ignore[method-assign]
    with profiler:
        learner.learn(1)
        torch.cuda.synchronize()
    found = [
        (event.key, event.self_device_time_total / _PROFILED)
        for event in profiler.key_averages()
        if event.self_device_time_total
    ]
    total = sum(time for _, time in found)
    return [
        {"name": name, "microseconds": round(time, 2), "share": round(time / total, 4)}
        for name, time in sorted(found, key=lambda pair: -pair[1])[:_KERNELS]
    ]


if __name__ == "__main__":
    main()
