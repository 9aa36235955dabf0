"""Settings of every method on every benchmark: numbers only, chosen on validation data.

`"*"` is for all methods that train a network. A method without settings of its own has these and
its defaults. The network of a benchmark is in `benchmarks.py`, and what deviates from the paper is
said in `presets.py`.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

_DISJOINT: Settings = {
    "batch": 64,
    "epochs": 20.0,
    "rate": 0.4,
    "smooth": 1.0,
    "local": 5.0,
    "average": 0.9995,
}
_PERMUTED: Settings = {"batch": 64, "epochs": 8.0, "rate": 0.2, "average": 0.999}
_CIFAR: Settings = {"loss": "softmax", "batch": 64, "epochs": 50.0, "rate": 0.01}

# chosen so far: cab on MNIST and Fashion-MNIST; all else is a start to tune from, and cab-readout
# needs nothing of its own
TUNED: dict[str, dict[str, Settings]] = {
    "disjoint-mnist-2": {
        "*": _DISJOINT,
        "cab": {"input_aperture": 270.0, "aperture": 23.0, "later_rate": 4.0},
    },
    "disjoint-mnist-2-deep": {
        "*": _DISJOINT,
        "cab": {"input_aperture": 270.0, "aperture": 70.0, "later_rate": 1.0},
    },
    "disjoint-mnist-5": {
        "*": _DISJOINT,
        "cab": {"input_aperture": 1000.0, "aperture": 12.0, "later_rate": 8.0},
    },
    "disjoint-mnist-10": {
        "*": {**_DISJOINT, "scale": 1.2, "average": 0.999},
        "cab": {"input_aperture": 800.0, "aperture": 6.0, "later_rate": 8.0},
    },
    "permuted-mnist-10": {
        "*": _PERMUTED,
        "cab": {"input_aperture": 4.0, "aperture": 8.0, "rate": 0.3},
    },
    "permuted-mnist-10-deep": {"*": _PERMUTED, "cab": {"aperture": 4.0, "rate": 0.3}},
    "permuted-mnist-100": {"*": _PERMUTED},
    "disjoint-fashion-2": {
        "*": _DISJOINT,
        "cab": {"input_aperture": 70.0, "aperture": 23.0, "later_rate": 1.0},
    },
    "split-cifar100-heads": {"*": _CIFAR},
    "split-cifar100-single": {"*": _CIFAR},
}
