"""The two forms in which a conceptor is stored: an odds matrix, or a spectrum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from conceptors.algebra import spectrum as spectra
from conceptors.algebra.spectrum import Spectrum

Change = Callable[[Tensor, torch.Size], Tensor]


class _Form:
    """What the spectrum determines in both forms."""

    dtype: torch.dtype

    def exact_spectrum(self) -> Spectrum:
        """Return directions that are not rounded to the dtype: AND may magnify such rounding."""
        raise NotImplementedError

    def spectrum(self) -> Spectrum:
        return spectra.cast(self.exact_spectrum(), self.dtype)


class OddsForm(_Form):
    """Q = α² R `[..., d, d]` in full precision; factored on first use.

    Attributes:
        matrix: Q.
        dtype: of all results.
        exact: the spectrum of Q, in directions that are not rounded to the dtype; None if unknown.
    """

    def __init__(self, matrix: Tensor, dtype: torch.dtype) -> None:
        self.matrix, self.dtype = matrix.contiguous(), dtype
        self.exact: Spectrum | None = None

    @property
    def tensor(self) -> Tensor:
        """The tensor that defines shape and device."""
        return self.matrix

    def exact_spectrum(self) -> Spectrum:
        if self.exact is None:
            self.exact = spectra.from_odds_matrix(self.matrix)
        return self.exact

    def trace(self) -> Tensor:
        """Return tr Q `[...]`."""
        return self.matrix.diagonal(dim1=-2, dim2=-1).sum(-1)

    def mapped(self, change: Change, depth: int) -> OddsForm:
        """Apply `change` to every tensor and its shape beyond the `depth` batch dimensions."""
        form = OddsForm(change(self.matrix, self.matrix.shape[depth:]), self.dtype)
        if self.exact is not None:
            form.exact = _mapped(self.exact, change, depth)
        return form

    def cast(self, dtype: torch.dtype) -> OddsForm:
        return self if dtype == self.dtype else OddsForm(self.matrix, dtype)


class SpectrumForm(_Form):
    """Directions and their odds, all of them or fewer (the factored form)."""

    def __init__(self, parts: Spectrum, dtype: torch.dtype) -> None:
        self._parts, self.dtype = spectra.cast(parts, dtype), dtype

    @property
    def tensor(self) -> Tensor:
        return self._parts.vectors

    def exact_spectrum(self) -> Spectrum:
        return self._parts

    def trace(self) -> Tensor:
        missing = self._parts.dim - self._parts.rank
        return self._parts.odds.sum(-1) + (missing * self._parts.rest if missing else 0.0)

    def mapped(self, change: Change, depth: int) -> SpectrumForm:
        return SpectrumForm(_mapped(self._parts, change, depth), self.dtype)

    def cast(self, dtype: torch.dtype) -> SpectrumForm:
        if dtype == self.dtype:
            return self
        parts = spectra.cast(self._parts, dtype)
        return SpectrumForm(parts._replace(vectors=spectra.orthonormalised(parts.vectors)), dtype)


Form = OddsForm | SpectrumForm


def _mapped(parts: Spectrum, change: Change, depth: int) -> Spectrum:
    vectors = change(parts.vectors, parts.vectors.shape[depth:])
    return Spectrum(vectors, change(parts.odds, parts.odds.shape[depth:]), parts.rest)
