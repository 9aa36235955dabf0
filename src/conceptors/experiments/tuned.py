"""Settings of every method on every benchmark: numbers only, chosen on validation data.

`"*"` is for all methods that train a network. A method without settings of its own has these and
its defaults. The network of a benchmark is in `benchmarks.py`, and what deviates from the paper is
said in `presets.py`.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

_DISJOINT: Settings = {"batch": 64, "epochs": 20.0, "rate": 0.4}
_PERMUTED: Settings = {"batch": 64, "epochs": 5.0, "rate": 0.1}
_CIFAR: Settings = {"loss": "softmax", "batch": 64, "epochs": 50.0, "rate": 0.01}
_CAB_DISJOINT: Settings = {
    "aperture": 23.0,
    "input_aperture": 270.0,
    "later_rate": 4.0,
    "increment_decay": 5e-6,
}

# chosen so far: cab on two tasks of MNIST; all else is a start to tune from
TUNED: dict[str, dict[str, Settings]] = {
    "disjoint-mnist-2": {"*": _DISJOINT, "cab": _CAB_DISJOINT},
    "disjoint-mnist-2-deep": {"*": _DISJOINT, "cab": _CAB_DISJOINT},
    "disjoint-mnist-5": {"*": _DISJOINT, "cab": _CAB_DISJOINT},
    "disjoint-mnist-10": {"*": _DISJOINT, "cab": _CAB_DISJOINT},
    "permuted-mnist-10": {"*": _PERMUTED},
    "permuted-mnist-10-deep": {"*": _PERMUTED},
    "permuted-mnist-100": {"*": _PERMUTED},
    "disjoint-fashion-2": {"*": _DISJOINT, "cab": _CAB_DISJOINT},
    "split-cifar100-heads": {"*": _CIFAR},
    "split-cifar100-single": {"*": _CIFAR},
}
