"""Conceptors as mathematics: their logic, spectra, leading directions and apertures."""

from conceptors.algebra.logic import conjoin, disjoin, precedes, similarity
from conceptors.algebra.spectrum import (
    Spectrum,
    adapt,
    complete,
    from_matrix,
    from_odds_matrix,
    from_rows,
    harden,
    negate,
    project,
    singular_values,
    to_matrix,
    truncate,
)

__all__ = [
    "Spectrum",
    "adapt",
    "complete",
    "conjoin",
    "disjoin",
    "from_matrix",
    "from_odds_matrix",
    "from_rows",
    "harden",
    "negate",
    "precedes",
    "project",
    "similarity",
    "singular_values",
    "to_matrix",
    "truncate",
]
