"""Conceptors as mathematics: their logic, spectra, leading directions and apertures."""

from conceptors.algebra.conceptor import Conceptor, similarity
from conceptors.algebra.spectrum import Spectrum

__all__ = ["Conceptor", "Spectrum", "similarity"]
