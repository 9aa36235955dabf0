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

if TYPE_CHECKING:
    from conceptors.algebra.aperture import (
        Auto,
        Energy,
        Quota,
        aperture_by_validation,
        aperture_for_quota,
    )
    from conceptors.algebra.conceptor import Conceptor, similarity
    from conceptors.estimators.evidence import ConceptorClassifier
    from conceptors.estimators.layer_inputs import LayerInputs
    from conceptors.estimators.lift import RandomFeatures
    from conceptors.estimators.patches import PatchFeatures
    from conceptors.estimators.readout import Readout
    from conceptors.estimators.ridge import (
        ConceptorRidge,
        ConceptorRidgeClassifier,
        MemoryFullWarning,
    )
    from conceptors.estimators.sgd import ConceptorSGDRegressor
    from conceptors.estimators.side_by_side import SideBySide
    from conceptors.integrations.sklearn import ContinualMLPClassifier
    from conceptors.moments.correlation import Correlation
    from conceptors.moments.frequent_directions import FrequentDirections
    from conceptors.shield import Shield, ShieldFullWarning, UnprotectedWarning

__version__ = "0.1.0"

# Loaded on first use: torch takes seconds, scikit-learn for the estimators is optional.
_HOMES = {
    "Auto": "algebra.aperture",
    "Conceptor": "algebra.conceptor",
    "ConceptorClassifier": "estimators.evidence",
    "ConceptorRidge": "estimators.ridge",
    "ConceptorRidgeClassifier": "estimators.ridge",
    "ConceptorSGDRegressor": "estimators.sgd",
    "ContinualMLPClassifier": "integrations.sklearn",
    "Correlation": "moments.correlation",
    "Energy": "algebra.aperture",
    "FrequentDirections": "moments.frequent_directions",
    "LayerInputs": "estimators.layer_inputs",
    "MemoryFullWarning": "estimators.ridge",
    "PatchFeatures": "estimators.patches",
    "Quota": "algebra.aperture",
    "RandomFeatures": "estimators.lift",
    "Readout": "estimators.readout",
    "Shield": "shield.shield",
    "ShieldFullWarning": "shield.room",
    "SideBySide": "estimators.side_by_side",
    "UnprotectedWarning": "shield.watch",
    "aperture_by_validation": "algebra.aperture",
    "aperture_for_quota": "algebra.aperture",
    "similarity": "algebra.conceptor",
}

__all__ = [
    "Auto",
    "Conceptor",
    "ConceptorClassifier",
    "ConceptorRidge",
    "ConceptorRidgeClassifier",
    "ConceptorSGDRegressor",
    "ContinualMLPClassifier",
    "Correlation",
    "Energy",
    "FrequentDirections",
    "LayerInputs",
    "MemoryFullWarning",
    "PatchFeatures",
    "Quota",
    "RandomFeatures",
    "Readout",
    "Shield",
    "ShieldFullWarning",
    "SideBySide",
    "UnprotectedWarning",
    "__version__",
    "aperture_by_validation",
    "aperture_for_quota",
    "similarity",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'conceptors' has no attribute {name!r}")
    found = getattr(import_module(f"conceptors.{_HOMES[name]}"), name)
    globals()[name] = found  # the next time, without coming here
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
