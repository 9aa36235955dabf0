"""Settings of every method on every benchmark, chosen on validation data.

`"*"` is for all methods that train a network; it is here. What single methods have beyond that is
in `tuned.json`, into which `experiments/tune_rows.py --adopt` writes. A method that is not there
has what all share, and its defaults. The network of a benchmark is in `benchmarks.py`, and what
deviates from the paper is said in `presets.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conceptors._internal.files import write_atomically

Settings = dict[str, Any]
Chosen = dict[str, dict[str, Settings]]  # by benchmark and method

_OWN = Path(__file__).with_name("tuned.json")
_DISJOINT: Settings = {
    "batch": 64,
    "epochs": 20.0,
    "rate": 0.4,
    "smooth": 1.0,
    "local": 5.0,
    "average": 0.9995,
}
_PERMUTED: Settings = {"batch": 64, "epochs": 8.0, "rate": 0.2, "average": 0.999}
_CIFAR: Settings = {  # from a look at cab with heads
    "loss": "softmax",
    "batch": 64,
    "epochs": 40.0,
    "rate": 0.1,
    "dropout": 0.25,
    "mirror": True,
    "shift": 2,
    "average": 0.998,
}
SHARED: dict[str, Settings] = {
    "disjoint-mnist-2": _DISJOINT,
    "disjoint-mnist-2-deep": _DISJOINT,
    "disjoint-mnist-5": _DISJOINT,
    "disjoint-mnist-10": {**_DISJOINT, "scale": 1.2, "average": 0.999},
    "permuted-mnist-10": _PERMUTED,
    "permuted-mnist-10-deep": _PERMUTED,
    "permuted-mnist-100": {
        **_PERMUTED,
        "epochs": 1.0,
        "rate": 0.5,
        "average": 0.995,
        "precision": "tf32",
    },
    "disjoint-fashion-2": _DISJOINT,
    "split-cifar100-heads": _CIFAR,
    "split-cifar100-single": {**_CIFAR, "epochs": 10.0, "norms": "first"},
}


def read(path: Path = _OWN) -> Chosen:
    """What was chosen for single methods."""
    found: Chosen = json.loads(path.read_text("utf-8"))
    return found


def adopt(best: Chosen, path: Path = _OWN) -> None:
    """Write settings over those that were chosen before for the same methods and benchmarks."""
    held = read(path)
    for row, by_method in best.items():
        held.setdefault(row, {}).update(by_method)
    ordered = {row: dict(sorted(held[row].items())) for row in SHARED if row in held}
    lines = []
    for row, by_method in ordered.items():
        own = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in by_method.items()]
        lines.append(f" {json.dumps(row)}: {{\n" + ",\n".join(own) + "\n }")
    write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


TUNED: Chosen = {row: {"*": shared, **read().get(row, {})} for row, shared in SHARED.items()}
