"""Synthetic results like those of real runs: forgetting where it belongs, quotas that fill up."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

HOSTILE = "<script>document.title='owned';alert(1)</script>"
REFERENCE = {
    "cab": {"mean": 94.91, "std": 0.30, "source": "technical report 35"},
    "ewc": {"mean": 52.72, "std": 1.36, "source": "Lee et al. 2017, cited by the paper"},
    "imm": {"mean": 94.12, "std": 0.27, "source": "Lee et al. 2017, cited by the paper"},
}
SIZES = {"input": 785, "hidden": 101}
KEPT = {"sgd": 0.0, "ewc": 0.55, "cab": 0.985, "joint": 1.0}  # share kept when a task is added


def make(
    tasks: int = 2,
    seeds: int = 3,
    methods: tuple[str, ...] = ("cab", "ewc", "sgd", "joint"),
    *,
    disjoint: bool = True,
    bare: bool = False,
) -> dict[str, Any]:
    """Results of `methods` on `tasks` tasks; `bare` leaves every optional part out."""
    runs = [_run(m, seed, tasks, disjoint, bare) for m in methods for seed in range(seeds)]
    names = [f"digits {5 * k}–{5 * k + 4}" for k in range(2)]
    results: dict[str, Any] = {
        "schema": 1,
        "scenario": "disjoint-mnist" if disjoint else "permuted-mnist",
        "command": f"conceptors run {'disjoint' if disjoint else 'permuted'}-mnist "
        + " ".join(f"--method {m}" for m in methods)
        + f" --tasks {tasks} --seeds {seeds} --preset paper --out results/run",
        "preset": "paper",
        "runs": runs,
        "summary": {m: summarise([r for r in runs if r["method"] == m]) for m in methods},
        "task_names": names
        if disjoint and tasks == 2
        else [f"permutation {k}" for k in range(tasks)],
        "environment": {
            "python": "3.11.9",
            "torch": "2.13.0",
            "numpy": "2.4.6",
            "conceptors": "0.1.0",
            "commit": "0123456789abcdef0123456789abcdef01234567",
            "device": "cpu",
            "platform": "Linux-6.1-x86_64",
        },
        "deviations": [],
    }
    if not bare:
        results["title"] = "Disjoint MNIST" if disjoint else f"Permuted MNIST, {tasks} tasks"
        results["reference"] = copy.deepcopy(
            REFERENCE if disjoint else {"cab": {**REFERENCE["cab"], "mean": 95.2}}
        )
        results["deviations"] = [
            "The conceptors are hard (singular values of at least 0.5 become 1, others 0), as in "
            "the authors' notebooks; the paper does not say so.",
            "Each unit's gradient is scaled to length 1 after summing over the batch.",
        ]
    return results


def _run(method: str, seed: int, tasks: int, disjoint: bool, bare: bool) -> dict[str, Any]:
    rng = np.random.default_rng([seed, tasks, sum(map(ord, method))])
    kept = KEPT.get(method, 0.9)
    accuracy = np.zeros((tasks, tasks))
    for i in range(tasks):
        accuracy[i, :i] = accuracy[i - 1, :i] if i else 0.0
        if i and disjoint:
            accuracy[i, :i] *= kept
        elif i:
            age = np.arange(i, 0, -1)
            accuracy[i, :i] -= (1 - kept) * 12.0 / np.sqrt(age)
        accuracy[i, i] = (98.6 if disjoint else 97.2) - (0.12 * i if method == "cab" else 0.03 * i)
        accuracy[i, i + 1 :] = 0.0 if disjoint else 10.0
    accuracy = np.clip(accuracy + rng.normal(0, 0.3, accuracy.shape), 0.0, 99.9)
    if disjoint:  # classes never seen are never predicted
        accuracy[np.triu_indices(tasks, 1)] = 0.0
    earlier = np.diag(accuracy)[:-1]
    run: dict[str, Any] = {
        "method": method,
        "seed": seed,
        "accuracy": [[round(float(v), 2) for v in row] for row in accuracy],
        "final_accuracy": round(float(accuracy[-1].mean()), 2),
        "forgetting": round(float((accuracy[:, :-1].max(0) - accuracy[-1, :-1]).mean()), 2)
        if tasks > 1
        else 0.0,
        "backward_transfer": round(float((accuracy[-1, :-1] - earlier).mean()), 2)
        if tasks > 1
        else 0.0,
        "seconds": round(float({"joint": 61.0, "ewc": 190.0}.get(method, 42.0) + rng.random()), 2),
        "config": _config(method, disjoint, seed),
    }
    if bare:
        return run
    run["history"] = [{"task": 0, "step": [0, 100], "loss": [0.5, 0.1], "validation": [10.0, 95.0]}]
    if method.startswith("cab"):
        run["spectra"] = {layer: _spectra(d, tasks, rng) for layer, d in SIZES.items()}
        run["quota"] = {
            layer: [round(float(np.mean(s)), 4) for s in found]
            for layer, found in run["spectra"].items()
        }
        near = 0.95 if disjoint else 0.31
        noise = np.clip(near + rng.normal(0, 0.01, (tasks, tasks)), 0, 1)
        noise = (noise + noise.T) / 2
        np.fill_diagonal(noise, 1.0)
        run["similarity"] = [[round(float(v), 3) for v in row] for row in noise]
    return run


def _spectra(d: int, tasks: int, rng: np.random.Generator) -> list[list[float]]:
    """Singular values s = r / (r + 1/81) of a sum of correlation matrices that overlap."""
    size = 1.0 if d < 200 else 0.16
    found = []
    for k in range(tasks):
        used = 1 - (1 - size * 0.9) ** ((k + 1) ** (0.9 if d > 200 else 0.35))
        index = (np.arange(d) + 0.5) / d
        s = 1 / (1 + np.exp((index - used) * (14 - 8 * min(k / 12, 1))))
        s = np.clip(s + rng.normal(0, 1e-4, d), 0, 1)
        found.append([round(float(v), 4) for v in sorted(s, reverse=True)])
    return found


def _config(method: str, disjoint: bool, seed: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "network": "784-800-10" if disjoint else "784-100-10",
        "activation": "sigmoid",
        "loss": "mse",
        "batch_size": 300 if disjoint else 50,
        "steps": 10000,
        "lr": 0.01 if method == "ewc" else 0.1,
        "seed": seed,
    }
    if method.startswith("cab"):
        config |= {"aperture": 9.0, "hard": disjoint, "increment_decay": 0.005, "samples": 1000}
    if method == "ewc":
        config |= {"strength": 15.0, "fisher": "sample"}
    return config


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The entry of a method in the summary."""
    final = np.array([r["final_accuracy"] for r in runs])
    means = {
        name: float(np.mean([r[name] for r in runs]))
        for name in ("forgetting", "backward_transfer", "seconds")
    }
    sd = float(final.std(ddof=1)) if len(runs) > 1 else 0.0
    return {"mean": float(final.mean()), "std": sd, "n": len(runs), **means}


def hostile() -> dict[str, Any]:
    """Names that try to break out of wherever they are put."""
    names = (
        HOSTILE,
        "\"><img src=x onerror=document.title='owned'>",
        "</script><script>document.title='owned'</script>",
        "_hidden $\\frac{1}{0}$ $ {{ 7*7 }} {% raise %}",
        "方法 \u202eidib\u202c é \x00\x07\ud800 &amp; &lt;",
        "a very long name " * 20,
        "x" * 400,
    )
    results = make(3, 2, names, disjoint=False)
    for run in results["runs"]:
        for layer in (HOSTILE, "y" * 200):
            run.setdefault("quota", {})[layer] = [0.1, 0.2, 0.3]
            run.setdefault("spectra", {})[layer] = [[0.9, 0.4], [1.0, 0.5], [1.0, 0.6]]
        run["config"] = {HOSTILE: HOSTILE, "nested": {"a": [1, "</style>"]}, "z" * 300: "w" * 900}
        run["similarity"] = [[1.0, 0.2, 0.3], [0.2, 1.0, 0.4], [0.3, 0.4, 1.0]]
    results["title"] = f"</title>{HOSTILE}"
    results["scenario"] = HOSTILE
    results["command"] = f"run '{HOSTILE}' " + "q" * 500
    results["preset"] = HOSTILE
    results["task_names"] = [HOSTILE, "t" * 300, "'\"`"]
    results["environment"][HOSTILE] = {"x": HOSTILE}
    results["deviations"] = [HOSTILE, "v" * 1000]
    results["reference"] = {HOSTILE: {"mean": 1.0, "std": None, "source": HOSTILE}}
    return results
