"""The two forms in which a conceptor is held: an odds matrix, or a spectrum."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from conceptors.algebra import spectrum as spectra
from conceptors.algebra.eigen import thin
from conceptors.algebra.spectrum import Spectrum

Change = Callable[[Tensor, torch.Size], Tensor]


class OddsForm:
    """Q = α² R `[..., d, d]` in full precision; factored when that is needed, once.

    Attributes:
        matrix: Q.
        dtype: of everything that is made of it.
    """

    def __init__(self, matrix: Tensor, dtype: torch.dtype) -> None:
        self.matrix, self.dtype = matrix.contiguous(), dtype
        self._exact: Spectrum | None = None
        self._spectrum: Spectrum | None = None
        self._dense: Tensor | None = None
        self._quota: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """What tells shape and device."""
        return self.matrix

    @property
    def is_factored_yet(self) -> bool:
        """Whether the spectrum is known already."""
        return self._spectrum is not None

    def spectrum(self) -> Spectrum:
        if self._spectrum is None:
            self._spectrum = spectra.cast(self.exact_spectrum(), self.dtype)
        return self._spectrum

    def exact_spectrum(self) -> Spectrum:
        """Not rounded to the dtype, for logic: AND may magnify what rounding does to directions."""
        if self._exact is None:
            self._exact = spectra.from_odds_matrix(self.matrix)
        return self._exact

    def dense(self, keep: bool = True) -> Tensor:
        """C `[..., d, d]`: kept for the next time, and not to be changed; or one's own."""
        if self._dense is not None:
            return self._dense if keep else self._dense.clone()
        found = spectra.matrix_of_odds(self.matrix)
        made = spectra.to_matrix(self.spectrum()) if found is None else found.to(self.dtype)
        if keep:
            self._dense = made
        return made

    def quota(self) -> Tensor:
        """The mean singular value, the same whether or not the spectrum is known by now."""
        if self._quota is None:
            trace = spectra.trace_of_odds(self.matrix)
            if trace is None:
                mean = spectra.singular_values(self.spectrum()).mean(-1)
            else:
                mean = trace / self.matrix.shape[-1]
            self._quota = mean.to(self.dtype).clamp(0, 1)
        return self._quota.clone()

    def trace(self) -> Tensor:
        """tr Q `[...]`."""
        return self.matrix.diagonal(dim1=-2, dim2=-1).sum(-1)

    def top(self, rank: int) -> Spectrum:
        """The `rank` largest odds alone."""
        if thin(rank, self.matrix.shape[-1]):
            return spectra.cast(spectra.top_k_of_odds(self.matrix, rank), self.dtype)
        return spectra.truncate(self.spectrum(), rank)

    def mapped(self, change: Change, depth: int) -> OddsForm:
        """The same change to every tensor, told its shape beyond the `depth` batch dimensions."""
        found = OddsForm(change(self.matrix, self.matrix.shape[depth:]), self.dtype)
        if self._spectrum is not None:
            found._spectrum = _mapped(self._spectrum, change, depth)
        if self._exact is not None:
            found._exact = _mapped(self._exact, change, depth)
        if self._quota is not None:
            found._quota = change(self._quota, self._quota.shape[depth:])
        return found

    def cast(self, dtype: torch.dtype) -> OddsForm:
        """In another dtype; factored anew, from what is held in full precision."""
        return self if dtype == self.dtype else OddsForm(self.matrix, dtype)


class SpectrumForm:
    """Directions and their odds, all of them or fewer (the factored form)."""

    def __init__(self, parts: Spectrum, dtype: torch.dtype) -> None:
        self._parts, self.dtype = spectra.cast(parts, dtype), dtype
        self._dense: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        return self._parts.vectors

    def spectrum(self) -> Spectrum:
        return self._parts

    def exact_spectrum(self) -> Spectrum:
        return self._parts

    def dense(self, keep: bool = True) -> Tensor:
        if self._dense is not None:
            return self._dense if keep else self._dense.clone()
        made = spectra.to_matrix(self._parts)
        if keep:
            self._dense = made
        return made

    def quota(self) -> Tensor:
        return spectra.singular_values(self._parts).mean(-1)

    def trace(self) -> Tensor:
        missing = self._parts.dim - self._parts.rank
        return self._parts.odds.sum(-1) + (missing * self._parts.rest if missing else 0.0)

    def top(self, rank: int) -> Spectrum:
        parts = spectra.complete(self._parts) if self._parts.rest else self._parts
        return spectra.truncate(parts._replace(rest=0.0), rank)

    def mapped(self, change: Change, depth: int) -> SpectrumForm:
        return SpectrumForm(_mapped(self._parts, change, depth), self.dtype)

    def cast(self, dtype: torch.dtype) -> SpectrumForm:
        if dtype == self.dtype:
            return self
        parts = spectra.cast(self._parts, dtype)
        vectors = spectra.orthonormalised(parts.vectors)
        return SpectrumForm(parts._replace(vectors=vectors), dtype)


Form = OddsForm | SpectrumForm


def _mapped(parts: Spectrum, change: Change, depth: int) -> Spectrum:
    vectors = change(parts.vectors, parts.vectors.shape[depth:])
    return Spectrum(vectors, change(parts.odds, parts.odds.shape[depth:]), parts.rest)


def truncations(parts: Spectrum) -> tuple[Tensor, list[float]]:
    """For k = 0 … r: the error of keeping k directions, `[..., r + 1]`, and the rest for it.

    A dense spectrum may choose the rest, 0 or inf; it is the same for a whole batch.
    """
    if not parts.is_dense:
        return spectra.truncation_errors(parts), [parts.rest] * (parts.rank + 1)
    low = spectra.truncation_errors(parts._replace(rest=0.0))
    high = spectra.truncation_errors(parts._replace(rest=math.inf))
    size = parts.rank + 1
    empty = low.reshape(-1, size).amax(0) <= high.reshape(-1, size).amax(0)
    return torch.where(empty, low, high), [0.0 if is_low else math.inf for is_low in empty]
