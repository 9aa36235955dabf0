"""Train networks on one task after another without losing what they already know.

`Shield` protects the layers of a network while any torch optimizer trains it. `Readout` learns
classes in closed form. `Conceptor` is the algebra beneath: soft projections with NOT, OR and AND.

>>> import torch
>>> from conceptors import Conceptor, similarity
>>> A = Conceptor.from_states(torch.randn(100, 5), aperture=2.0)
>>> B = Conceptor.from_states(torch.randn(100, 5), aperture=2.0)
>>> bool(A <= (A | B)), bool((A & B) <= A)
(True, True)
"""

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
    from conceptors.estimators.ridge import ConceptorRidge, ConceptorRidgeClassifier
    from conceptors.estimators.sgd import ConceptorSGDRegressor
    from conceptors.moments import Correlation, FrequentDirections
    from conceptors.readout import LayerInputs, PatchFeatures, RandomFeatures, Readout
    from conceptors.shield import Shield, UnprotectedWarning

__version__ = "0.1.0"

# Names are imported on first use: importing torch takes seconds, and scikit-learn is optional.
_NAMES = {
    "algebra.aperture": "Auto Energy Quota aperture_by_validation aperture_for_quota",
    "algebra.conceptor": "Conceptor similarity",
    "estimators.ridge": "ConceptorRidge ConceptorRidgeClassifier",
    "estimators.sgd": "ConceptorSGDRegressor",
    "moments": "Correlation FrequentDirections",
    "readout": "LayerInputs PatchFeatures RandomFeatures Readout",
    "shield": "Shield UnprotectedWarning",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Auto",
    "Conceptor",
    "ConceptorRidge",
    "ConceptorRidgeClassifier",
    "ConceptorSGDRegressor",
    "Correlation",
    "Energy",
    "FrequentDirections",
    "LayerInputs",
    "PatchFeatures",
    "Quota",
    "RandomFeatures",
    "Readout",
    "Shield",
    "UnprotectedWarning",
    "__version__",
    "aperture_by_validation",
    "aperture_for_quota",
    "similarity",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'conceptors' has no attribute {name!r}")
    value = getattr(import_module(f"conceptors.{_HOMES[name]}"), name)
    globals()[name] = value  # later accesses bypass this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
