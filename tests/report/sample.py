"""Synthetic results like those of real runs: forgetting where it belongs, quotas that fill up."""

from typing import Any

import numpy as np

from conceptors.experiments.results import summarise

HOSTILE = "<script>document.title='owned';alert(1)</script>"
REFERENCE = {
    "cab": {"mean": 94.91, "std": 0.30, "source": "paper"},
}
LAYERS = {"input": 785, "hidden": 101}
REMEMBERED = {"sgd": 0.0, "ewc": 0.55, "cab": 0.985, "joint": 1.0}  # the share per later task


def make(
    tasks: int = 2,
    seeds: int = 3,
    methods: tuple[str, ...] = ("cab", "ewc", "sgd", "joint"),
    *,
    bare: bool = False,
) -> dict[str, Any]:
    """Results of `methods` on `tasks` tasks; `bare` leaves every optional part out."""
    runs = [_run(method, seed, tasks, bare) for method in methods for seed in range(seeds)]
    optional = {
        "title": "Disjoint MNIST",
        "preset": "paper",
        "command": "conceptors run disjoint-mnist --method cab",
        "task_names": [f"digits {k}" for k in range(tasks)],
        "reference": REFERENCE,
        "deviations": ["The conceptors are hard; the paper does not say so."],
    }
    return {
        "schema": 1,
        "scenario": "disjoint-mnist",
        "runs": runs,
        "summary": summarise(runs),
        "environment": {"torch": "2.13.0", "device": "cpu", "commit": None},
        **({} if bare else optional),
    }


def _run(method: str, seed: int, tasks: int, bare: bool) -> dict[str, Any]:
    rng = np.random.default_rng([seed, tasks, sum(map(ord, method))])
    accuracy = np.diag(98.6 - rng.random(tasks))
    for i in range(1, tasks):
        accuracy[i, :i] = accuracy[i - 1, :i] * REMEMBERED.get(method, 0.9)
    lost = float((accuracy[:, :-1].max(0) - accuracy[-1, :-1]).mean()) if tasks > 1 else None
    run: dict[str, Any] = {
        "method": method,
        "seed": seed,
        "accuracy": accuracy.round(2).tolist(),
        "final_accuracy": round(float(accuracy[-1].mean()), 2),
        "forgetting": lost,
        "seconds": 42.5,
        "config": {"batch": 300, "rate": 0.1, "seed": seed},
    }
    if method == "ewc":
        run["config"]["strength"] = 15.0
    if method == "cab" and not bare:
        run["quota"] = {layer: [(k + 1) / (tasks + 1) for k in range(tasks)] for layer in LAYERS}
        run["spectra"] = {
            layer: [np.linspace(1, 0, dim).tolist()] * tasks for layer, dim in LAYERS.items()
        }
        run["similarity"] = np.where(np.eye(tasks, dtype=bool), 1.0, 0.25).tolist()
    return run


def hostile() -> dict[str, Any]:
    """Names that try to break out of wherever they are put."""
    names = (
        HOSTILE,
        "</script>\"><img src=x onerror=document.title='owned'>",
        "{{ 7*7 }} {% raise %} 方法 \u202eidib\u202c é \x00\x07\ud800 &amp; &lt;",
        "a very long name " * 20,
        "constructor",
        "__proto__",
    )
    results = make(3, 2, names)
    for run in results["runs"]:
        layers = (HOSTILE, "y" * 200, "constructor")
        run["quota"] = {layer: [0.1, 0.2, 0.3] for layer in layers}
        run["spectra"] = {layer: [[0.9, 0.4], [1.0, 0.5], [1.0, 0.6]] for layer in layers}
        run["config"] = {HOSTILE: HOSTILE, "nested": {"a": [1, "</style>"]}, "z" * 300: "w" * 900}
        run["similarity"] = [[1.0, 0.2, 0.3], [0.2, 1.0, 0.4], [0.3, 0.4, 1.0]]
    return results | {
        "scenario": HOSTILE,
        "preset": HOSTILE,
        "title": f"</title>{HOSTILE}",
        "command": f"run '{HOSTILE}' " + "q" * 500,
        "task_names": [HOSTILE, "t" * 300, "'\"`"],
        "environment": {HOSTILE: {"x": HOSTILE}, "items": "a method of dictionaries"},
        "deviations": [HOSTILE, "v" * 1000],
        "reference": {HOSTILE: {"mean": 1.0, "std": None, "source": HOSTILE}},
        "failed": [{"method": HOSTILE, "seed": 7, "reason": HOSTILE, "config": {}}],
    }
