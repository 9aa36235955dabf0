"""Conceptors: soft projections that let networks learn one task after another.

>>> import torch
>>> from conceptors import Conceptor, similarity
>>> A = Conceptor.from_states(torch.randn(100, 5), aperture=2.0)
>>> B = Conceptor.from_states(torch.randn(100, 5), aperture=2.0)
>>> bool(A <= (A | B)), bool((A & B) <= A)
(True, True)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conceptors.algebra.aperture import (
    ApertureChoice,
    aperture_by_gradient,
    aperture_by_validation,
    aperture_for_quota,
)
from conceptors.algebra.conceptor import Conceptor, similarity
from conceptors.algebra.targets import Auto, Energy, Quota
from conceptors.shield import Shield, ShieldFullWarning
from conceptors.streams.correlation import Correlation
from conceptors.streams.frequent_directions import FrequentDirections

if TYPE_CHECKING:
    from conceptors.estimators.evidence import ConceptorClassifier
    from conceptors.estimators.ridge import (
        ConceptorRidge,
        ConceptorRidgeClassifier,
        MemoryFullWarning,
    )
    from conceptors.estimators.sgd import ConceptorSGDRegressor

__version__ = "0.1.0"

# Loaded on first use, because they need scikit-learn, which is optional.
_ESTIMATORS = {
    "ConceptorClassifier": "evidence",
    "ConceptorRidge": "ridge",
    "ConceptorRidgeClassifier": "ridge",
    "ConceptorSGDRegressor": "sgd",
    "MemoryFullWarning": "ridge",
}

__all__ = [
    "ApertureChoice",
    "Auto",
    "Conceptor",
    "ConceptorClassifier",
    "ConceptorRidge",
    "ConceptorRidgeClassifier",
    "ConceptorSGDRegressor",
    "Correlation",
    "Energy",
    "FrequentDirections",
    "MemoryFullWarning",
    "Quota",
    "Shield",
    "ShieldFullWarning",
    "__version__",
    "aperture_by_gradient",
    "aperture_by_validation",
    "aperture_for_quota",
    "similarity",
]


def __getattr__(name: str) -> Any:
    if name in _ESTIMATORS:
        return getattr(import_module(f"conceptors.estimators.{_ESTIMATORS[name]}"), name)
    raise AttributeError(f"module 'conceptors' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
