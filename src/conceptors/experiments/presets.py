"""Named settings: what the paper used, and what did best on validation data here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from conceptors._internal.suggest import nearest
from conceptors.experiments.benchmarks import BENCHMARKS, Benchmark, benchmark_for
from conceptors.experiments.tuned import TUNED


@dataclass(frozen=True)
class Preset:
    """Settings of a scenario's methods, where they come from, and how they deviate."""

    about: str
    common: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    scenario: dict[str, Any] = field(default_factory=dict)
    deviations: tuple[str, ...] = ()
    reference: dict[str, dict[str, Any]] = field(default_factory=dict)

    def settings(self, method: str) -> dict[str, Any]:
        return {**self.common, **self.methods.get(method, {})}


_PAPER_NETWORK = {
    "activation": "sigmoid",
    "loss": "mse",
    "init": "truncated",
    "scale": 0.1,
    "rate": 0.1,
    "steps": 10_000,
}
_RELU = {
    "activation": "relu",
    "init": "uniform",
    "scale": 1.7,
    "steps": 0,
    "batch": 64,
    "gradient": "mean",
}
_UNSAID = (
    "not in the paper's text but in its authors' code: truncated normal initial weights of sd "
    "0.1, the first 5,000 training images held out for validation"
)

PAPER = {
    "disjoint-mnist": Preset(
        "the paper's disjoint MNIST: 784-800-10, sigmoid, half squared error, plain SGD",
        common={**_PAPER_NETWORK, "hidden": "800", "batch": 300},
        methods={
            "cab": {
                "aperture": 9.0,
                "hard": True,
                "samples": 1000,
                "increment_decay": 0.0025,
                "first_anchor": "zero",
                "gradient": "unit",
                "stop_above": 99.0,
                "stop_above_later": 95.5,
            },
            "sgd": {"gradient": "unit", "stop_above": 99.0, "stop_above_later": 95.5},
            "ewc": {**_RELU, "loss": "softmax", "epochs": 5.0, "rate": 0.001, "strength": 1e4},
            "imm": {
                **_RELU,
                "loss": "softmax",
                "epochs": 5.0,
                "rate": 0.1,
                "mode": "mean",
                "share": 0.65,
                "l2": 1e-3,
            },
            "joint": {**_RELU, "loss": "bce", "epochs": 20.0, "rate": 0.4},
        },
        deviations=(
            _UNSAID,
            "also from that code: hard conceptors from 1,000 samples, each neuron's summed "
            "gradient scaled to length 1, λ(W − W_old) with λ = 0.005 added after that (0.0025 in "
            "Algorithm 2's count), W_old = 0 in the first task, stopping at 99.0 % (later tasks "
            "95.5 %) validation accuracy",
            "EWC and IMM: same network size, but ReLU and cross-entropy, settings chosen on "
            "validation data here; the paper cites 784-800-800-10 networks from Lee et al.",
            "joint: ReLU and cross-entropy, on all tasks at once",
        ),
        reference={
            "cab": {"mean": 94.91, "std": 0.30, "source": "paper"},
            "imm": {"mean": 94.12, "std": 0.27, "source": "Lee et al. 2017, cited"},
            "ewc": {"mean": 52.72, "std": 1.36, "source": "Lee et al. 2017, cited"},
        },
    ),
    "permuted-mnist": Preset(
        "the paper's permuted MNIST: 784-100-10, sigmoid, half squared error, plain SGD",
        common={**_PAPER_NETWORK, "hidden": "100", "batch": 50, "gradient": "sum"},
        methods={
            "cab": {
                "aperture": 4.0,
                "samples": 500,
                "increment_decay": 0.0005,
                "first_anchor": "zero",
            },
            "ewc": {**_RELU, "loss": "softmax", "epochs": 3.0, "rate": 0.1, "strength": 1.0},
            "joint": {**_RELU, "loss": "bce", "epochs": 5.0, "rate": 0.4},
        },
        deviations=(
            _UNSAID,
            "also from that code: gradients summed over batches of 50, λ(W − W_old) with λ = 0.001 "
            "(0.0005 in Algorithm 2's count), W_old = 0 in the first task, conceptors from 500 "
            "samples, task 1 unpermuted",
            "EWC: settings chosen on validation data here",
        ),
        reference={"cab": {"mean": 95.2, "std": None, "source": "paper"}},
    ),
}

_ABOUT = {
    "disjoint-mnist-2": "ReLU and cross-entropy, apertures and rates chosen on validation images"
}
_DEVIATIONS = {
    "disjoint-mnist-2": (
        "ReLU and cross-entropy instead of sigmoid neurons and squared error",
        "soft conceptors from all training images; apertures 270 (input) and 23 (hidden) "
        "instead of 9",
        "batches of 64, averaged gradients, 20 epochs a task; learning rate 0.4, from the "
        "second task on 4",
        "uniform initial weights of ± 1.7 / √fan-in, those of the first layer blurred by a pixel, "
        "each neuron's around one place (sd 5 pixels); a task ends with a running mean of its "
        "weights",
    )
}


def _tuned(benchmark: Benchmark) -> Preset:
    """What is chosen for a benchmark, its network included."""
    found = TUNED.get(benchmark.name, {})
    network = {} if benchmark.hidden is None else {"hidden": benchmark.hidden}
    return Preset(
        _ABOUT.get(benchmark.name, f"settings for {benchmark}"),
        common={**network, **found.get("*", {})},
        methods={method: own for method, own in found.items() if method != "*"},
        deviations=_DEVIATIONS.get(benchmark.name, ()),
        reference={
            one.method: {"mean": one.mean, "std": one.std, "source": one.source}
            for one in benchmark.published
        },
    )


BEST = {name: _tuned(benchmark) for name, benchmark in BENCHMARKS.items()}
PRESETS = {"paper": PAPER, "best": BEST}
RENAMED = {"report": "paper"}  # names of earlier versions, in commands and files


def presets_of(scenario: str) -> list[str]:
    """Names of presets for a scenario.

    >>> presets_of("permuted-mnist"), presets_of("disjoint-fashion"), presets_of("clinc150")
    (['paper', 'best'], ['best'], [])
    """
    tuned = {benchmark.scenario for benchmark in BENCHMARKS.values()}
    return [name for name, known in (("paper", PAPER), ("best", tuned)) if scenario in known]


def current_name(name: str | None) -> str | None:
    """Today's name of a preset."""
    return RENAMED.get(name, name) if name else name


def preset(
    name: str | None,
    scenario: str,
    options: dict[str, Any] | None = None,
    hidden: str | None = None,
) -> Preset:
    """A preset of a scenario; without a name, defaults.

    "best" depends on the benchmark that the scenario's options and the hidden layers make; the name
    of a benchmark stands for its settings whatever they are.

    Raises:
        ValueError: there is no such preset, or not for this scenario.
    """
    name = current_name(name)
    if name is None:
        return Preset("defaults")
    if name not in PRESETS and name not in BENCHMARKS:
        raise ValueError(f"unknown preset {name!r}{nearest(name, [*PRESETS, *BENCHMARKS])}")
    if name == "paper":
        known = PAPER
    elif name == "best":
        scenarios = {benchmark.scenario for benchmark in BENCHMARKS.values()}
        chosen = {s: benchmark_for(s, options or {}, hidden) for s in scenarios}
        known = {s: BEST[benchmark.name] for s, benchmark in chosen.items()}
    else:
        known = {BENCHMARKS[name].scenario: BEST[name]}
    if scenario not in known:
        raise ValueError(
            f"preset {name!r} has no settings for scenario {scenario!r}{nearest(scenario, known)}"
        )
    return known[scenario]
