"""What is tried for cab, its relatives, EWC and IMM on each benchmark, for `tune_rows.py`.

A grid is a list of choices for each setting, and all combinations are tried. All else is as in
`tuned.py`. Where α falls by layer, the last one keeps it, as in OWM's own code.
"""

from __future__ import annotations

from typing import Any

Grid = dict[str, list[Any]]

_CAB: dict[str, Grid] = {
    "disjoint-mnist-2": {
        "input_aperture": [270.0, 600.0, 1200.0],
        "aperture": [12.0, 23.0, 46.0],
        "later_rate": [4.0, 8.0],
    },
    "disjoint-mnist-2-deep": {
        "increment_decay": [1e-4, 3e-4],
        "input_aperture": [270.0],
        "aperture": [70.0, 140.0],
        "later_rate": [4.0, 8.0],
        "samples": [10_000],
    },
    "disjoint-mnist-5": {
        "input_aperture": [500.0, 1000.0, 2000.0],
        "aperture": [6.0, 12.0],
        "later_rate": [4.0, 8.0],
    },
    "disjoint-mnist-10": {
        "input_aperture": [400.0, 800.0, 1600.0],
        "aperture": [4.0, 6.0, 9.0],
        "later_rate": [4.0],
    },
    "disjoint-fashion-2": {
        "local": [0.0, 5.0],
        "input_aperture": [70.0, 270.0, 600.0],
        "aperture": [12.0, 23.0],
        "later_rate": [1.0, 4.0],
    },
    "permuted-mnist-10": {
        "increment_decay": [1e-4, 3e-4],
        "input_aperture": [2.8, 4.0],
        "aperture": [4.0],
        "rate": [0.6, 1.0, 1.6],
    },
    "permuted-mnist-10-deep": {
        "increment_decay": [1e-4, 3e-4],
        "input_aperture": [2.8, 4.0],
        "aperture": [4.0, 6.0],
        "rate": [0.6, 1.0, 1.6],
    },
    "permuted-mnist-100": {
        "increment_decay": [3e-4],
        "input_aperture": [1.4, 2.8, 5.6],
        "aperture": [1.4, 4.0],
        "rate": [0.5],  # a first task of twice the rate comes to no numbers
        "samples": [10_000],  # remembering all of them would take a quarter of the time
    },
    "split-cifar100-heads": {
        "increment_decay": [0.0, 3e-4],
        "aperture": [1.4, 2.0, 2.8],
        "norm_aperture": [30.0],
        "rate": [0.1, 0.2],
    },
    "split-cifar100-single": {
        "aperture": [1.0, 2.0, 4.0, 8.0],
        "norm_aperture": [30.0],
        "rate": [0.05, 0.2],
    },
}
_EWC: Grid = {"strength": [10.0, 100.0, 1e3, 1e4], "rate": [0.001, 0.01, 0.1]}
_IMM: Grid = {
    "mode": ["mean", "mode"],
    "share": [0.5, 0.65],
    "l2": [0.0, 1e-2],
    "rate": [0.1, 0.4],
}


def _disjoint(*by_layer: str) -> dict[str, Grid]:
    return {
        "owm": {"alpha_decay": [*by_layer], "rate": [0.4, 0.8, 1.6]},
        "gpm": {
            "threshold": [0.8, 0.9, 0.97],
            "input_threshold": [0.99, 0.999, 0.9997],
            "later_rate": [0.0, 0.1],  # 0: as before
        },
        "sgp": {
            "coefficient": [25.0, 100.0, 400.0],
            "threshold": [0.9, 0.97],
            "input_threshold": [0.99, 0.999],
        },
    }


_PERMUTED: dict[str, Grid] = {
    "owm": {"alpha_decay": ["1", "0.1"], "rate": [0.5, 1.0, 2.0, 4.0]},
    "gpm": {
        "threshold": [0.97, 0.99, 0.995],
        "input_threshold": [0.8, 0.9, 0.95],
        "rate": [0.2, 0.5],
    },
    "sgp": {
        "coefficient": [5.0, 25.0, 100.0],
        "threshold": [0.9, 0.95, 0.97],
        "rate": [0.2, 0.5],
    },
    "trgp": {
        "threshold": [0.99],
        "input_threshold": [0.95],
        "trust": [0.2, 0.5],
        "rate": [0.2],
        "own_rate": [0.02, 0.03, 0.05],  # with 0.1, and two hidden layers at 1, it diverges
    },
    "codecl": {"aperture": [4.0, 8.0, 16.0], "kept": [0.95], "rate": [0.1]},
}
# a hundred tasks fill the space of inputs: less of that is claimed by each
_PERMUTED_100: dict[str, Grid] = {
    "owm": {"alpha_decay": ["0.1", "0.3"], "rate": [0.5], "later_rate": [1.0, 1.5, 2.0]},
    "gpm": {"threshold": [0.97, 0.99], "input_threshold": [0.6, 0.7, 0.8]},
    "sgp": {
        "coefficient": [25.0, 100.0],
        "threshold": [0.9, 0.97],
        "input_threshold": [0.7, 0.8],
    },
    "trgp": {"threshold": [0.9, 0.95], "trust": [0.2, 0.5]},
    "codecl": {"kept": [0.8, 0.9, 0.95]},
}
_CIFAR_ONE_HEAD: dict[str, Grid] = {
    "ewc": {"strength": [100.0, 1e3, 1e4], "rate": [0.01, 0.05]},
    "imm": {"mode": ["mean", "mode"], "rate": [0.01, 0.05]},
    "owm": {"alpha_decay": ["0.1", "0.01"], "rate": [0.02, 0.1]},
    "gpm": {"threshold": [0.95, 0.97], "increase": [0.003], "rate": [0.05, 0.1]},
    "sgp": {"coefficient": [3.0, 10.0], "increase": [0.003], "rate": [0.05, 0.1]},
}
_CIFAR_HEADS: dict[str, Grid] = {
    **_CIFAR_ONE_HEAD,
    "gpm": {"threshold": [0.9, 0.95], "increase": [0.003], "rate": [0.1, 0.2]},
    "sgp": {"coefficient": [1.0, 3.0], "increase": [0.003], "rate": [0.02, 0.05]},
    "trgp": {"increase": [0.003], "trust": [0.5, 0.8], "rate": [0.02, 0.05]},
    "codecl": {"aperture": [4.0, 8.0], "kept": [0.95], "rate": [0.02, 0.05]},
}

_RELATIVES: dict[str, dict[str, Grid]] = {
    "disjoint-mnist-2": _disjoint("0.001,1", "0.0001,1"),
    "disjoint-mnist-2-deep": _disjoint("0.001,0.1,1", "0.0001,0.1,1"),
    "disjoint-mnist-5": _disjoint("0.001,1", "0.0001,1"),
    "disjoint-mnist-10": _disjoint("0.001,1", "0.0001,1"),
    "permuted-mnist-10": _PERMUTED,
    "permuted-mnist-10-deep": _PERMUTED,
    "permuted-mnist-100": _PERMUTED_100,
    "disjoint-fashion-2": _disjoint("0.001,1", "0.0001,1"),
    "split-cifar100-heads": _CIFAR_HEADS,
    "split-cifar100-single": _CIFAR_ONE_HEAD,
}
GRIDS: dict[str, dict[str, Grid]] = {
    row: {"ewc": _EWC, "imm": _IMM, **grids, "cab": _CAB[row]} for row, grids in _RELATIVES.items()
}
QUICK = tuple(row for row in GRIDS if "cifar" not in row and row != "permuted-mnist-100")
