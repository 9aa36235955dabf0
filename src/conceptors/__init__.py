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

from conceptors.aperture import (
    ApertureChoice,
    aperture_by_gradient,
    aperture_by_validation,
    aperture_for_quota,
)
from conceptors.conceptor import Conceptor, similarity
from conceptors.correlation import Correlation
from conceptors.shield import Shield, ShieldFullWarning
from conceptors.sketch import FrequentDirections
from conceptors.targets import Auto, Energy, Quota

if TYPE_CHECKING:
    from conceptors.classifier import ConceptorClassifier
    from conceptors.regression import (
        ConceptorRidge,
        ConceptorRidgeClassifier,
        MemoryFullWarning,
    )
    from conceptors.sgd import ConceptorSGDRegressor

__version__ = "0.1.0"

# Loaded on first use, because they need scikit-learn, which is optional.
_ESTIMATORS = {
    "ConceptorClassifier": "classifier",
    "ConceptorRidge": "regression",
    "ConceptorRidgeClassifier": "regression",
    "ConceptorSGDRegressor": "sgd",
    "MemoryFullWarning": "regression",
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
        return getattr(import_module(f"conceptors.{_ESTIMATORS[name]}"), name)
    raise AttributeError(f"module 'conceptors' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
