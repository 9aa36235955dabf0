"""The benchmarks that methods are compared on, with what others have published and our goals.

Settings of methods are in `tuned.py`; `conceptors all` runs everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conceptors._internal.suggest import nearest

CHOSEN = ("cab", "cab-readout")  # ours, with apertures that were chosen on validation images
UNCHOSEN = ("shield", "shield-readout")  # and with those that the data gives
OURS = CHOSEN + UNCHOSEN  # the best of these is held against the others
_RELATIVES = ("ewc", "imm", "owm", "gpm", "sgp", "trgp", "codecl")
METHODS_COMPARED = ("sgd", *_RELATIVES, "separate", *OURS, "readout", "joint")  # in this order


@dataclass(frozen=True)
class Published:
    """An accuracy in percent as others have reported it."""

    method: str  # as it is called here, if it is
    mean: float
    source: str
    std: float | None = None
    label: bool = False  # it has parts of its own for each task, or is told the task when tested


@dataclass(frozen=True)
class Goal:
    """What we want to reach; parts that are None do not count."""

    accuracy: float | None = None  # at least
    transfer: float | None = None  # backward transfer at least
    below_joint: float | None = None  # at most so many points
    above_others: float | None = None  # at least so many points above the best of them

    def __str__(self) -> str:
        """
        >>> print(Goal(78.0, transfer=-0.5)), print(Goal(below_joint=2.0))
        78, backward transfer at least −0.5
        within 2 points of joint
        (None, None)
        """
        parts = []
        if self.accuracy is not None:
            parts.append(f"{self.accuracy:g}")
        if self.transfer is not None:
            parts.append(f"backward transfer at least {self.transfer:g}".replace("-", "−"))
        if self.below_joint is not None:
            parts.append(f"within {self.below_joint:g} points of joint")
        if self.above_others is not None:
            parts.append(f"{self.above_others:g} points above the best other")
        return ", ".join(parts)


@dataclass(frozen=True)
class Benchmark:
    """A scenario with a network, and how it is judged."""

    name: str
    scenario: str
    tasks: int
    network: str  # neurons of the hidden layers as the setting `hidden` has them, or AlexNet
    goal: Goal
    published: tuple[Published, ...] = ()
    seeds: int = 10
    heads: bool | None = None  # one head per task; None where there is no choice
    told: bool = False  # methods that are told the task when tested may take part
    standardised: bool = False  # pixels of mean 0 and variance 1

    @property
    def hidden(self) -> str | None:
        return None if self.network == "AlexNet" else self.network

    @property
    def options(self) -> dict[str, Any]:
        """Of the scenario."""
        heads = {} if self.heads is None else {"heads": self.heads}
        pixels = {"standardised": True} if self.standardised else {}
        return {"tasks": self.tasks, **heads, **pixels}

    def __str__(self) -> str:
        """
        >>> print(BENCHMARKS["disjoint-mnist-5"])
        disjoint-mnist, 5 tasks, network 800, 10 seeds
        """
        heads = {None: "", True: ", one head per task", False: ", one head"}[self.heads]
        what = f"{self.scenario}, {self.tasks} tasks{heads}"
        return f"{what}, network {self.network}, {self.seeds} seeds"


_CAB = Published("cab", 94.91, "paper", 0.30)
_IMM = Published("imm", 94.12, "Lee et al. 2017, cited", 0.27)


def _owm(mean: float) -> Published:
    return Published("owm", mean, "Zeng et al. 2019")


def _gpm(mean: float) -> Published:
    return Published("gpm", mean, "Saha et al. 2021")


def _trgp(mean: float) -> Published:
    return Published("trgp", mean, "Lin et al. 2022, TRGP", label=True)


def _cuber(mean: float) -> Published:
    return Published("cuber", mean, "Lin et al. 2022, CUBER", label=True)


_ALL = (
    Benchmark(
        "disjoint-mnist-2", "disjoint-mnist", 2, "800", Goal(97.3), (_owm(96.35), _CAB, _IMM)
    ),
    Benchmark("disjoint-mnist-2-deep", "disjoint-mnist", 2, "800,800", Goal(97.5), (_owm(96.68),)),
    Benchmark("disjoint-mnist-5", "disjoint-mnist", 5, "800", Goal(95.5)),
    Benchmark("disjoint-mnist-10", "disjoint-mnist", 10, "800", Goal(95.5), (_owm(94.36),)),
    Benchmark(
        "permuted-mnist-10", "permuted-mnist", 10, "100", Goal(96.3), (_owm(95.21),), told=True
    ),
    Benchmark(
        "permuted-mnist-10-deep",
        "permuted-mnist",
        10,
        "100,100",
        Goal(96.6),
        (
            _gpm(93.91),
            _trgp(96.34),
            _cuber(97.25),
            Published("codecl", 96.56, "Apolinario et al. 2024", label=True),
        ),
        told=True,
    ),
    Benchmark(
        "permuted-mnist-100",
        "permuted-mnist",
        100,
        "2000,2000",
        Goal(92.0),
        (_owm(85.4),),
        told=True,
    ),
    Benchmark("disjoint-fashion-2", "disjoint-fashion", 2, "800", Goal(below_joint=2.0)),
    Benchmark(
        "split-cifar100-heads",
        "split-cifar100",
        10,
        "AlexNet",
        Goal(78.0, transfer=-0.5),
        (
            _gpm(72.48),
            _trgp(74.46),
            _cuber(75.54),
            Published("sgp", 76.05, "Saha & Roy 2023"),
            Published("codecl", 77.21, "Apolinario et al. 2024", label=True),
        ),
        seeds=5,
        heads=True,
        told=True,
    ),
    Benchmark(
        "split-cifar100-single",
        "split-cifar100",
        10,
        "AlexNet",
        Goal(above_others=5.0),
        seeds=5,
        heads=False,
    ),
)
BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL}


def benchmark_for(scenario: str, options: dict[str, Any], hidden: str | None = None) -> Benchmark:
    """The benchmark that a run with these options comes closest to.

    What is not said, or fits none, is as in the scenario's first one.

    Raises:
        ValueError: no benchmark has this scenario.
    """
    found = [benchmark for benchmark in _ALL if benchmark.scenario == scenario]
    if not found:
        known = nearest(scenario, {benchmark.scenario for benchmark in _ALL})
        raise ValueError(f"no benchmark has the scenario {scenario!r}{known}")
    tasks = options.get("tasks") or found[0].tasks
    heads = options.get("heads") is not False
    wanted = found[0].hidden if hidden is None else str(hidden).replace(" ", "")
    found = [b for b in found if b.tasks == tasks] or found
    found = [b for b in found if b.heads in (None, heads)] or found
    found = [b for b in found if b.hidden == wanted] or found
    return found[0]
