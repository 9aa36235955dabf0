"""How conceptors are made and read; the operators are in `conceptor`."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from conceptors._internal import checks
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.forms import Form, OddsForm, SpectrumForm
from conceptors.algebra.spectrum import Spectrum


class ConceptorBase:
    """Constructors and properties of `Conceptor`."""

    __slots__ = ("_aperture", "form")

    form: Form
    _aperture: Tensor | None  # [...]

    @classmethod
    def from_form(cls, form: Form, aperture: Tensor | None = None) -> Self:
        """What is held in one of the two forms of `conceptors.algebra.forms`, unchecked."""
        self = object.__new__(cls)
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "_aperture", aperture)
        return self

    @classmethod
    def from_states(cls, states: Tensor, aperture: float | Tensor) -> Self:
        """The conceptor of samples in rows, with R = Xᵀ X / n.

        Args:
            states: `[n, d]`, or a batch `[..., n, d]`; float32 or float64, tensor or numpy array.
            aperture: α > 0, one number or one for each member of the batch.

        Second moments and factorisation are made in float64; the result has the dtype of the
        states. With fewer samples than dimensions the factored form comes out, exactly.

        Raises:
            TypeError, ValueError: not float rows, empty, NaN or infinite, aperture not positive.

        >>> import torch
        >>> from conceptors import Conceptor
        >>> Conceptor.from_states(torch.eye(2), aperture=1.0).matrix()
        tensor([[0.3333, 0.0000],
                [0.0000, 0.3333]])
        """
        rows = checks.states(states)
        alpha = checks.aperture(aperture, rows.shape[:-2], rows)
        count, dim = rows.shape[-2:]
        wide = rows.to(spectra.work_dtype(rows))
        wide = wide * (alpha.to(wide) / math.sqrt(count))[..., None, None]
        _no_overflow(wide.square().sum((-2, -1)), aperture)
        if count < dim and not _have_other_scales(wide):
            return cls.from_form(SpectrumForm(spectra.from_rows(wide), rows.dtype), alpha)
        odds = wide.mT @ wide
        if not spectra.is_accurate(odds):
            return cls.from_form(SpectrumForm(spectra.from_rows(wide), rows.dtype), alpha)
        if count < dim:
            some = spectra.truncate(spectra.from_odds_matrix(odds), count)
            return cls.from_form(SpectrumForm(some, rows.dtype), alpha)
        return cls.from_form(OddsForm(odds, rows.dtype), alpha)

    @classmethod
    def from_correlation(cls, correlation: Tensor, aperture: float | Tensor) -> Self:
        """The conceptor of a correlation matrix R = E[x xᵀ], `[..., d, d]`.

        Raises:
            TypeError, ValueError: not square, not symmetric, indefinite, not finite, aperture
                not positive.

        >>> import torch
        >>> from conceptors import Conceptor
        >>> R = torch.diag(torch.tensor([3.0, 1.0, 0.0]))
        >>> Conceptor.from_correlation(R, aperture=1.0).singular_values
        tensor([0.7500, 0.5000, 0.0000])
        """
        matrix = checks.positive_semidefinite(correlation, "correlation")
        return cls.from_second_moment(matrix, aperture)

    @classmethod
    def from_second_moment(cls, matrix: Tensor, aperture: float | Tensor) -> Self:
        """The same for a matrix that is known to be E[x xᵀ], which is not checked again."""
        alpha = checks.aperture(aperture, matrix.shape[:-2], matrix)
        odds = matrix.to(spectra.work_dtype(matrix))
        scale = alpha.to(odds)[..., None, None]
        form = OddsForm(odds * scale * scale, matrix.dtype)
        _no_overflow(form.trace(), aperture)
        return cls.from_form(form, alpha)

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> Self:
        """A conceptor matrix made elsewhere: symmetric `[..., d, d]`, eigenvalues in [0, 1].

        >>> import torch
        >>> from conceptors import Conceptor
        >>> Conceptor.from_matrix(torch.diag(torch.tensor([1.0, 0.5]))).quota
        tensor(0.7500)
        """
        matrix = checks.conceptor_matrix(matrix)
        rounding = spectra.tolerance(matrix.shape[-1], matrix.dtype)
        spectrum = spectra.from_matrix(matrix.to(spectra.work_dtype(matrix)), rounding)
        return cls.from_form(SpectrumForm(spectrum, matrix.dtype))

    @classmethod
    def from_spectrum(
        cls, vectors: Tensor, values: Tensor, *, rest: float = 0.0, aperture: float | None = None
    ) -> Self:
        """The factored form: C = U diag(s) Uᵀ + rest (I - U Uᵀ), never d x d.

        Args:
            vectors: U `[..., d, r]` with orthonormal columns.
            values: s `[..., r]` in [0, 1].
            rest: singular value, 0 or 1, of all directions orthogonal to U.
            aperture: what it was built with, if known; kept as a note.

        >>> import torch
        >>> from conceptors import Conceptor
        >>> C = Conceptor.from_spectrum(torch.eye(1000)[:, :2], torch.tensor([1.0, 0.5]))
        >>> C.rank, round(float(C.quota), 4), round(float((~C).quota), 4)
        (2, 0.0015, 0.9985)
        """
        vectors, values, rest = checks.spectrum(vectors, values, rest)
        alpha = None
        if aperture is not None:
            alpha = checks.aperture(aperture, values.shape[:-1], values)
        wide = spectra.work_dtype(vectors)
        odds = spectra.odds_of(values.to(wide))
        made = spectra.orthonormalised(vectors.to(wide))
        spectrum = Spectrum(made, odds, math.inf if rest else 0.0)
        return cls.from_form(SpectrumForm(spectrum, vectors.dtype), alpha)

    @classmethod
    def zero(
        cls,
        dim: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Self:
        """The conceptor that claims nothing, C = 0: the start of every sequence of tasks."""
        dim, dtype = checks.whole(dim, "dim", 1), checks.real_dtype(dtype)
        vectors = torch.zeros(dim, 0, dtype=dtype, device=device)
        spectrum = Spectrum(vectors, torch.zeros(0, dtype=dtype, device=device))
        return cls.from_form(SpectrumForm(spectrum, dtype))

    @property
    def dim(self) -> int:
        """d, the size of the space."""
        return self.form.tensor.shape[-2]

    @property
    def rank(self) -> int:
        """Number of directions held; `dim` in the dense form."""
        return self.form.tensor.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch, empty for a single conceptor."""
        return self.form.tensor.shape[:-2]

    @property
    def dtype(self) -> torch.dtype:
        return self.form.dtype

    @property
    def device(self) -> torch.device:
        return self.form.tensor.device

    @property
    def aperture(self) -> float | Tensor | None:
        """The aperture it was built with; None after NOT, AND, or when it is not known."""
        if self._aperture is None:
            return None
        return self._aperture.clone() if self._aperture.ndim else float(self._aperture)

    @property
    def is_factored(self) -> bool:
        """Whether fewer than `dim` directions are held."""
        return self.rank < self.dim

    @property
    def singular_values(self) -> Tensor:
        """All d singular values, descending, in [0, 1]: `[..., d]`."""
        return spectra.singular_values(self.form.spectrum())

    @property
    def spectrum(self) -> tuple[Tensor, Tensor, float]:
        """(U `[..., d, r]`, s `[..., r]`, rest): C = U diag(s) Uᵀ + rest (I - U Uᵀ)."""
        parts = self.form.spectrum()
        rest = 0.0 if parts.is_dense else spectra.value_of_rest(parts)
        return parts.vectors.clone(), spectra.values_of(parts.odds), rest

    @property
    def quota(self) -> Tensor:
        """Mean singular value: the share of the space that C claims, `[...]`."""
        return self.form.quota()

    def odds_trace(self) -> Tensor:
        """tr Q `[...]` of the odds Q = C (I - C)⁻¹, which is α² R; infinite where C claims all.

        >>> import torch
        >>> from conceptors import Conceptor
        >>> Conceptor.from_correlation(torch.eye(3, dtype=torch.float64), 2.0).odds_trace()
        tensor(12., dtype=torch.float64)
        """
        return self.form.trace()


def _have_other_scales(rows: Tensor) -> bool:
    """Whether columns differ so much in scale that rounding in the large ones hides the small."""
    sizes = rows.square().sum(-2)
    least = torch.where(sizes > 0, sizes, torch.inf).amin(-1)
    return bool((least < 1e-6 * sizes.amax(-1)).any())


def _no_overflow(trace: Tensor, aperture: object) -> None:
    if not bool(torch.isfinite(trace).all()):
        raise ValueError(
            f"aperture {aperture} is too large for data of this size: aperture² · R overflows "
            f"{trace.dtype}; scale the data or lower the aperture"
        )
