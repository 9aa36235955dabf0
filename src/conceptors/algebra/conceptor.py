"""The conceptor as an immutable value with operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from conceptors._internal import checks
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.eigen import thin
from conceptors.algebra.spectrum import Spectrum


class Conceptor:
    """A soft projection on the directions that some data occupies.

    C = R (R + α⁻² I)⁻¹ minimises E‖x - C x‖² + α⁻² ‖C‖², where R = E[x xᵀ] and α, the aperture,
    says how small a variance still counts. Its eigenvalues (here called singular values, as in
    the conceptor literature; C is symmetric) are s = σ / (σ + α⁻²) in [0, 1].

    Make one with `from_states`, `from_correlation`, `from_matrix`, `from_spectrum`,
    `from_conceptor`, `zero` or `identity`. Leading dimensions are a batch of conceptors. A
    conceptor never changes; every operation gives a new one.

    >>> import torch
    >>> from conceptors import Conceptor, similarity
    >>> X = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    >>> C = Conceptor.from_states(X, aperture=1.0)
    >>> C.singular_values
    tensor([0.6667, 0.3333, 0.0000], dtype=torch.float64)
    >>> C
    Conceptor(dim=3, rank=2, quota=0.333, aperture=1, dtype=float64, device=cpu)
    >>> (~C).singular_values
    tensor([1.0000, 0.6667, 0.3333], dtype=torch.float64)
    >>> bool(C <= (C | C)), bool((C & ~C) <= C)
    (True, True)
    """

    __slots__ = ("_aperture", "_dtype", "_matrix", "_odds", "_quota", "_spectrum")

    _odds: Tensor | None  # Q = α² R in full precision, while the spectrum is not needed
    _spectrum: Spectrum | None
    _matrix: Tensor | None  # of the dense form, once it was needed
    _quota: Tensor | None  # of the form Q, once it was needed
    _dtype: torch.dtype
    _aperture: Tensor | None  # [...]

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(
            "make a Conceptor with Conceptor.from_states(X, aperture=...), .from_correlation, "
            ".from_matrix, .from_spectrum, .zero or .identity"
        )

    @classmethod
    def _make(
        cls,
        dtype: torch.dtype,
        *,
        spectrum: Spectrum | None = None,
        odds: Tensor | None = None,
        aperture: Tensor | None = None,
    ) -> Conceptor:
        self = object.__new__(cls)
        for name, value in (
            ("_dtype", dtype),
            ("_odds", None if odds is None else odds.contiguous()),
            ("_spectrum", None if spectrum is None else spectra.cast(spectrum, dtype)),
            ("_matrix", None),
            ("_quota", None),
            ("_aperture", aperture),
        ):
            object.__setattr__(self, name, value)
        return self

    # --- making ---------------------------------------------------------------------------

    @classmethod
    def from_states(cls, states: Tensor, aperture: float | Tensor) -> Conceptor:
        """The conceptor of samples in rows, with R = Xᵀ X / n.

        Args:
            states: `[n, d]`, or a batch `[..., n, d]`; float32 or float64, tensor or numpy array.
            aperture: α > 0, one number or one for each member of the batch.

        Second moments and factorisation are made in float64; the result has the dtype of the
        states. With fewer samples than dimensions the factored form comes out, exactly.

        Raises:
            TypeError, ValueError: not float rows, empty, NaN or infinite, aperture not positive.

        >>> import torch
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
        if count < dim:
            return cls._make(rows.dtype, spectrum=spectra.from_rows(wide), aperture=alpha)
        return cls._make(rows.dtype, odds=wide.mT @ wide, aperture=alpha)

    @classmethod
    def from_correlation(cls, correlation: Tensor, aperture: float | Tensor) -> Conceptor:
        """The conceptor of a correlation matrix R = E[x xᵀ], `[..., d, d]`.

        Raises:
            TypeError, ValueError: not square, not symmetric, indefinite, not finite, aperture
                not positive.

        >>> import torch
        >>> R = torch.diag(torch.tensor([3.0, 1.0, 0.0]))
        >>> Conceptor.from_correlation(R, aperture=1.0).singular_values
        tensor([0.7500, 0.5000, 0.0000])
        """
        return cls._of_correlation(
            checks.positive_semidefinite(correlation, "correlation"), aperture
        )

    @classmethod
    def _of_correlation(cls, matrix: Tensor, aperture: float | Tensor) -> Conceptor:
        """The same for a matrix that is known to be one."""
        alpha = checks.aperture(aperture, matrix.shape[:-2], matrix)
        odds = matrix.to(spectra.work_dtype(matrix))
        scale = alpha.to(odds)[..., None, None]
        odds = odds * scale * scale
        _no_overflow(_trace(odds), aperture)
        return cls._make(matrix.dtype, odds=odds, aperture=alpha)

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> Conceptor:
        """A conceptor matrix made elsewhere: symmetric `[..., d, d]`, eigenvalues in [0, 1].

        >>> import torch
        >>> Conceptor.from_matrix(torch.diag(torch.tensor([1.0, 0.5]))).quota
        tensor(0.7500)
        """
        matrix = checks.conceptor_matrix(matrix)
        rounding = spectra.tolerance(matrix.shape[-1], matrix.dtype)
        spectrum = spectra.from_matrix(matrix.to(spectra.work_dtype(matrix)), rounding)
        return cls._make(matrix.dtype, spectrum=spectrum)

    @classmethod
    def from_spectrum(
        cls, vectors: Tensor, values: Tensor, *, rest: float = 0.0, aperture: float | None = None
    ) -> Conceptor:
        """The factored form: C = U diag(s) Uᵀ + rest (I - U Uᵀ), never d x d.

        Args:
            vectors: U `[..., d, r]` with orthonormal columns.
            values: s `[..., r]` in [0, 1].
            rest: singular value, 0 or 1, of all directions orthogonal to U.
            aperture: what it was built with, if known; kept as a note.

        >>> import torch
        >>> C = Conceptor.from_spectrum(torch.eye(1000)[:, :2], torch.tensor([1.0, 0.5]))
        >>> C.rank, round(float(C.quota), 4), round(float((~C).quota), 4)
        (2, 0.0015, 0.9985)
        """
        vectors, values, rest = checks.spectrum(vectors, values, rest)
        alpha = None
        if aperture is not None:
            alpha = checks.aperture(aperture, values.shape[:-1], values)
        vectors = spectra.orthonormalised(vectors)
        spectrum = Spectrum(vectors, spectra.odds_of(values), math.inf if rest else 0.0)
        return cls._make(vectors.dtype, spectrum=spectrum, aperture=alpha)

    @classmethod
    def from_conceptor(cls, other: Conceptor, aperture: float | None = None) -> Conceptor:
        """Another conceptor, if wanted as if built at another aperture.

        That needs the aperture `other` was built with: φ(C, new / old).

        >>> import torch
        >>> C = Conceptor.from_states(torch.eye(2), aperture=1.0)
        >>> D = Conceptor.from_conceptor(C, aperture=3.0)
        >>> D.allclose(Conceptor.from_states(torch.eye(2), aperture=3.0))
        True
        """
        if not isinstance(other, Conceptor):
            raise TypeError(f"from_conceptor needs a Conceptor, got {type(other).__name__}")
        if aperture is None:
            return other
        new = checks.number(aperture, "aperture", 0.0, math.inf, open_low=True)
        if other._aperture is None:
            raise ValueError(
                "this conceptor has no single aperture (it came from NOT, AND, harden or a "
                "matrix); scale it with .adapt(gamma) instead"
            )
        old = other._aperture
        if bool((old != old.flatten()[0]).any()):
            raise ValueError(f"the batch has different apertures {old.tolist()}; use .adapt(gamma)")
        return other.adapt(new / float(old.flatten()[0]))

    @classmethod
    def zero(
        cls,
        dim: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Conceptor:
        """The conceptor that claims nothing, C = 0: the start of every sequence of tasks."""
        dim, dtype = checks.whole(dim, "dim", 1), checks.real_dtype(dtype)
        vectors = torch.zeros(dim, 0, dtype=dtype, device=device)
        spectrum = Spectrum(vectors, torch.zeros(0, dtype=dtype, device=device))
        return cls._make(dtype, spectrum=spectrum)

    @classmethod
    def identity(
        cls,
        dim: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Conceptor:
        """The conceptor that claims everything, C = I."""
        return ~cls.zero(dim, dtype=dtype, device=device)

    # --- reading --------------------------------------------------------------------------

    def _parts(self) -> Spectrum:
        """The spectrum, factored on first use and kept."""
        if self._spectrum is None:
            if self._odds is None:
                raise RuntimeError("a conceptor holds neither spectrum nor odds")
            spectrum = spectra.cast(spectra.from_odds_matrix(self._odds), self._dtype)
            object.__setattr__(self, "_spectrum", spectrum)
            return spectrum
        return self._spectrum

    def _tensor(self) -> Tensor:
        return self._spectrum.vectors if self._odds is None else self._odds  # type: ignore[union-attr]

    @property
    def dim(self) -> int:
        """d, the size of the space."""
        return self._tensor().shape[-2]

    @property
    def rank(self) -> int:
        """Number of directions held; `dim` in the dense form."""
        return self._tensor().shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch, empty for a single conceptor."""
        return self._tensor().shape[:-2]

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._tensor().device

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
        return spectra.singular_values(self._parts())

    @property
    def spectrum(self) -> tuple[Tensor, Tensor, float]:
        """(U `[..., d, r]`, s `[..., r]`, rest): C = U diag(s) Uᵀ + rest (I - U Uᵀ)."""
        parts = self._parts()
        rest = 0.0 if parts.is_dense else spectra.value_of_rest(parts)
        return parts.vectors.clone(), spectra.values_of(parts.odds), rest

    @property
    def quota(self) -> Tensor:
        """Mean singular value: the share of the space that C claims, `[...]`."""
        if self._odds is None:
            return self.singular_values.mean(-1)
        if self._quota is None:  # the same whether or not the spectrum is known by now
            trace = spectra.trace_of_odds(self._odds)
            mean = self.singular_values.mean(-1) if trace is None else trace / self.dim
            object.__setattr__(self, "_quota", mean.to(self._dtype).clamp(0, 1))
        return self._quota.clone()  # type: ignore[union-attr]

    def odds_trace(self) -> Tensor:
        """tr Q `[...]` of the odds Q = C (I - C)⁻¹, which is α² R; infinite where C claims all.

        >>> import torch
        >>> Conceptor.from_correlation(torch.eye(3, dtype=torch.float64), 2.0).odds_trace()
        tensor(12., dtype=torch.float64)
        """
        if self._odds is not None:
            return _trace(self._odds)
        parts = self._parts()
        missing = parts.dim - parts.rank
        return parts.odds.sum(-1) + (missing * parts.rest if missing else 0.0)

    def matrix(self) -> Tensor:
        """The d x d matrix, `[..., d, d]`."""
        if self.is_factored:
            return spectra.to_matrix(self._parts())
        return self._dense_matrix().clone() if self._matrix is not None else self._make_matrix()

    def _dense_matrix(self) -> Tensor:
        """The matrix of the dense form, made on first use and kept; not to be changed."""
        if self._matrix is None:
            object.__setattr__(self, "_matrix", self._make_matrix())
        return self._matrix  # type: ignore[return-value]

    def _make_matrix(self) -> Tensor:
        matrix = None if self._odds is None else spectra.matrix_of_odds(self._odds)
        return spectra.to_matrix(self._parts()) if matrix is None else matrix.to(self._dtype)

    def evidence(self, x: Tensor) -> Tensor:
        """xᵀ C x for vectors x `[..., d]`: how much of x lies in what C claims.

        >>> import torch
        >>> C = Conceptor.from_spectrum(torch.eye(2)[:, :1], torch.tensor([1.0]))
        >>> C.evidence(torch.tensor([[2.0, 5.0], [0.0, 1.0]]))
        tensor([4., 0.])
        """
        x = checks.real_tensor(x, "x")
        return (x * (self @ x)).sum(-1)

    def truncation_errors(self) -> Tensor:
        """Entry k: ‖C - C.factored(rank=k)‖ in the spectral norm, k = 0 … rank."""
        return _truncations(self._parts())[0]

    # --- logic ----------------------------------------------------------------------------

    def __invert__(self) -> Conceptor:
        """NOT: I - C."""
        return self._make(self._dtype, spectrum=spectra.negate(self._parts()))

    def __or__(self, other: Conceptor) -> Conceptor:
        """OR: what either claims. At equal aperture the conceptor of the sum of correlations."""
        if not isinstance(other, Conceptor):
            return NotImplemented
        self._check_partner(other)
        aperture = _common_aperture(self._aperture, other._aperture)
        if self._odds is not None and other._odds is not None:
            odds = self._odds + other._odds
            if bool(torch.isfinite(_trace(odds)).all()):
                return self._make(self._dtype, odds=odds, aperture=aperture)
        spectrum = spectra.disjoin(self._parts(), other._parts())
        return self._make(self._dtype, spectrum=spectrum, aperture=aperture)

    def __and__(self, other: Conceptor) -> Conceptor:
        """AND: what both claim, ¬(¬A ∨ ¬B)."""
        if not isinstance(other, Conceptor):
            return NotImplemented
        self._check_partner(other)
        return self._make(self._dtype, spectrum=spectra.conjoin(self._parts(), other._parts()))

    def __le__(self, other: Conceptor) -> Tensor:
        """Whether `other` - self has no negative eigenvalue, up to rounding: bool `[...]`."""
        if not isinstance(other, Conceptor):
            return NotImplemented
        self._check_partner(other)
        return spectra.precedes(self._parts(), other._parts())

    def __ge__(self, other: Conceptor) -> Tensor:
        if not isinstance(other, Conceptor):
            return NotImplemented
        return other <= self

    def adapt(self, gamma: float) -> Conceptor:
        """Aperture adaptation φ(C, γ) = C (C + γ⁻² (I - C))⁻¹ for γ in [0, ∞].

        φ(C, ∞) is the hard projector on the range of C. φ(C, 0) keeps only directions whose
        singular value is exactly 1; for any conceptor of data it is 0.

        >>> import math, torch
        >>> C = Conceptor.from_states(torch.eye(2), aperture=1.0)
        >>> [round(float(C.adapt(g).quota), 3) for g in (0, 1, 10, math.inf)]
        [0.0, 0.333, 0.98, 1.0]
        """
        gamma = checks.number(gamma, "gamma", 0.0, math.inf)
        aperture = None if self._aperture is None else _note(self._aperture * gamma)
        spectrum = spectra.adapt(self._parts(), gamma)
        return self._make(self._dtype, spectrum=spectrum, aperture=aperture)

    def harden(self, threshold: float = 0.5) -> Conceptor:
        """A hard projector: singular values >= threshold become 1, the others 0."""
        threshold = checks.number(threshold, "threshold", 0.0, 1.0, open_low=True)
        return self._make(self._dtype, spectrum=spectra.harden(self._parts(), threshold))

    # --- acting ---------------------------------------------------------------------------

    def __matmul__(self, x: Tensor) -> Tensor:
        """C x for the vectors in the last dimension of x.

        A single conceptor takes `[..., d]`. A batch `[..., d, d]` takes rows `[..., n, d]` and
        broadcasts as matrix products do; one vector `[d]` goes to every member.
        """
        if isinstance(x, Conceptor):
            raise TypeError(
                "C @ D of two conceptors is not a conceptor; use A & B, or A.matrix() @ B.matrix()"
            )
        x = checks.real_tensor(x, "x")
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise ValueError(
                f"x must have shape [..., {self.dim}] to be projected by a conceptor of dimension "
                f"{self.dim}, got {list(x.shape)}"
            )
        checks.same_kind(x, self._example(), "x", "the conceptor")
        if x.ndim > 1 and checks.broadcast(self.batch_shape, x.shape[:-2]) is None:
            raise ValueError(
                f"rows x of shape {list(x.shape)} do not fit a batch of conceptors of shape "
                f"{list(self.batch_shape)}; x needs shape [..., n, {self.dim}] with leading "
                f"dimensions that broadcast"
            )
        if not self.is_factored:
            return x @ self._dense_matrix()
        if x.ndim == 1:
            return spectra.project(self._parts(), x[None]).squeeze(-2)
        return spectra.project(self._parts(), x)

    # --- forms ----------------------------------------------------------------------------

    def factored(self, rank: int | None = None, tolerance: float | None = None) -> Conceptor:
        """The factored form: at most `rank` directions, or as few as an error allows.

        The error ‖C - C.factored(...)‖ in the spectral norm is at most `tolerance`, or, for a
        given rank, `C.truncation_errors()[rank]`. Without arguments nothing is lost.

        >>> import torch
        >>> R = torch.diag(torch.tensor([9.0, 1.0, 0.01, 0.0]))
        >>> C = Conceptor.from_correlation(R, aperture=1.0)
        >>> C.factored(tolerance=0.02).rank, C.factored().rank
        (2, 3)
        """
        if rank is not None and tolerance is not None:
            raise ValueError(f"give rank ({rank}) or tolerance ({tolerance}), not both")
        if rank is not None:
            rank = checks.whole(rank, "rank", 0, self.dim)
        allowed = 0.0 if tolerance is None else checks.number(tolerance, "tolerance", 0.0, 1.0)
        parts = self._parts()
        errors, rests = _truncations(parts)
        if rank is None:
            enough = (errors <= allowed).reshape(-1, errors.shape[-1]).all(0)
            rank = int(enough.nonzero()[0])
        if rank == self.dim:
            return self
        rank = min(rank, parts.rank)
        spectrum = spectra.truncate(parts._replace(rest=rests[rank]), rank)
        return self._make(self._dtype, spectrum=spectrum, aperture=self._aperture)

    def strongest(self, rank: int) -> Conceptor:
        """Only the `rank` largest singular values, all others 0, in factored form.

        >>> import torch
        >>> C = Conceptor.from_correlation(torch.diag(torch.tensor([9.0, 1.0, 3.0])), 1.0)
        >>> C.strongest(2).singular_values
        tensor([0.9000, 0.7500, 0.0000])
        """
        rank = checks.whole(rank, "rank", 0, self.dim)
        if self._odds is not None and thin(rank, self.dim):
            spectrum = spectra.strongest_of_odds(self._odds, rank)
        else:
            parts = self._parts()
            if parts.rest:
                parts = spectra.complete(parts)
            spectrum = spectra.truncate(parts._replace(rest=0.0), rank)
        return self._make(self._dtype, spectrum=spectrum, aperture=self._aperture)

    def dense(self) -> Conceptor:
        """The same conceptor with all d directions."""
        if not self.is_factored:
            return self
        parts = spectra.cast(self._parts(), spectra.work_dtype(self._tensor()))
        return self._make(self._dtype, spectrum=spectra.complete(parts), aperture=self._aperture)

    def to(
        self,
        device: torch.device | torch.dtype | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Conceptor:
        """On another device, in another dtype (float32 or float64); `to(dtype)` works too."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        dtype = self._dtype if dtype is None else checks.real_dtype(dtype)
        moved = self._map(lambda tensor, _: tensor.to(device))
        spectrum, odds, aperture = moved._spectrum, moved._odds, moved._aperture
        if dtype != self._dtype:
            if odds is not None:
                spectrum = None  # factored anew, from what is held in full precision
            elif spectrum is not None:
                spectrum = spectra.cast(spectrum, dtype)
                spectrum = spectrum._replace(vectors=spectra.orthonormalised(spectrum.vectors))
            aperture = None if aperture is None else _note(aperture.to(dtype))
        return self._make(dtype, spectrum=spectrum, odds=odds, aperture=aperture)

    def __getitem__(self, index: Any) -> Conceptor:
        """A member, or a part, of a batch."""
        if not self.batch_shape:
            raise IndexError("this is a single conceptor, not a batch; there is nothing to index")
        count = math.prod(self.batch_shape)
        flat = torch.arange(count).reshape(self.batch_shape)[index]
        if not flat.numel():
            raise IndexError(f"{index} selects nothing from a batch of {list(self.batch_shape)}")
        return self._map(lambda tensor, kept: tensor.reshape(count, *kept)[flat.to(tensor.device)])

    def _map(self, change: Callable[[Tensor, torch.Size], Tensor]) -> Conceptor:
        """The same change to every tensor held, told its shape beyond the batch."""
        depth = len(self.batch_shape)

        def changed(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor, tensor.shape[depth:])

        spectrum = self._spectrum
        if spectrum is not None:
            vectors, values = spectrum.vectors, spectrum.odds
            vectors = change(vectors, vectors.shape[depth:])
            spectrum = Spectrum(vectors, change(values, values.shape[depth:]), spectrum.rest)
        odds, aperture = changed(self._odds), changed(self._aperture)
        return self._make(self._dtype, spectrum=spectrum, odds=odds, aperture=aperture)

    def allclose(self, other: Conceptor, atol: float | None = None) -> bool:
        """Whether the matrices agree to `atol`, by default the square root of epsilon."""
        self._check_partner(other)
        if atol is None:
            atol = math.sqrt(torch.finfo(self._dtype).eps)
        atol = checks.number(atol, "atol", 0.0, math.inf)
        return bool(torch.allclose(self.matrix(), other.matrix(), rtol=0.0, atol=atol))

    def save(self, path: str | Path) -> None:
        """Write a safetensors file (see `conceptors.algebra.files`)."""
        from conceptors.algebra.files import save

        save(self, path)

    @staticmethod
    def load(path: str | Path) -> Conceptor:
        """Read a file that `save` wrote."""
        from conceptors.algebra.files import load

        return load(path)

    # --- housekeeping ---------------------------------------------------------------------

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Conceptor never changes; cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Conceptor never changes; cannot delete {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._dtype, self._spectrum, self._odds, self._aperture)

    def __repr__(self) -> str:
        batch = f"batch={list(self.batch_shape)}, " if self.batch_shape else ""
        alpha = self.aperture
        shown = f", aperture={alpha:g}" if isinstance(alpha, float) else ""
        return (
            f"Conceptor({batch}dim={self.dim}, rank={self.rank}, "
            f"quota={float(self.quota.mean()):.3f}{shown}, "
            f"dtype={str(self._dtype).removeprefix('torch.')}, device={self.device})"
        )

    def _check_partner(self, other: Conceptor) -> None:
        if not isinstance(other, Conceptor):
            raise TypeError(f"a Conceptor is needed, got {type(other).__name__}")
        if other.dim != self.dim:
            raise ValueError(
                f"conceptors of different size, {self.dim} and {other.dim}, cannot be combined; "
                f"both must describe the same space"
            )
        checks.same_kind(self._example(), other._example(), "one conceptor", "the other")
        if checks.broadcast(self.batch_shape, other.batch_shape) is None:
            raise ValueError(
                f"batches of conceptors of shape {list(self.batch_shape)} and "
                f"{list(other.batch_shape)} do not broadcast"
            )

    def _example(self) -> Tensor:
        """An empty tensor of this dtype and device."""
        return torch.empty(0, dtype=self._dtype, device=self.device)


def similarity(a: Conceptor, b: Conceptor) -> Tensor:
    """How much two conceptors overlap: ρ = ‖S_a^½ U_aᵀ U_b S_b^½‖² / (‖s_a‖ ‖s_b‖) in [0, 1].

    That is tr(A B) / (‖A‖ ‖B‖): 0 exactly for orthogonal conceptors (and when either is zero),
    1 exactly for multiples of each other.

    >>> import torch
    >>> A = Conceptor.from_spectrum(torch.eye(4)[:, :2], torch.tensor([1.0, 1.0]))
    >>> B = Conceptor.from_spectrum(torch.eye(4)[:, 1:3], torch.tensor([1.0, 1.0]))
    >>> similarity(A, A), similarity(A, ~A), similarity(A, B)
    (tensor(1.), tensor(0.), tensor(0.5000))
    """
    if not isinstance(a, Conceptor):
        raise TypeError(f"similarity compares two Conceptors, got {type(a).__name__}")
    a._check_partner(b)
    if a.is_factored or b.is_factored:
        return spectra.similarity(a._parts(), b._parts())
    return spectra.similarity_of_matrices(a._dense_matrix(), b._dense_matrix())


def _rebuild(
    dtype: torch.dtype, spectrum: Spectrum | None, odds: Tensor | None, aperture: Tensor | None
) -> Conceptor:
    return Conceptor._make(dtype, spectrum=spectrum, odds=odds, aperture=aperture)


def _truncations(spectrum: Spectrum) -> tuple[Tensor, list[float]]:
    """For k = 0 … r: the error of keeping k directions, `[..., r + 1]`, and the rest for it.

    A dense spectrum may choose the rest, 0 or inf; it is the same for a whole batch.
    """
    if not spectrum.is_dense:
        return spectra.truncation_errors(spectrum), [spectrum.rest] * (spectrum.rank + 1)
    low = spectra.truncation_errors(spectrum._replace(rest=0.0))
    high = spectra.truncation_errors(spectrum._replace(rest=math.inf))
    size = spectrum.rank + 1
    empty = low.reshape(-1, size).amax(0) <= high.reshape(-1, size).amax(0)
    return torch.where(empty, low, high), [
        0.0 if low_is_best else math.inf for low_is_best in empty
    ]


def _common_aperture(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return None
    same = a.shape == b.shape and bool((a == b).all())
    return a if same else None


def _note(aperture: Tensor) -> Tensor | None:
    """An aperture to remember, if it is one."""
    return aperture if bool(((aperture > 0) & torch.isfinite(aperture)).all()) else None


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _no_overflow(trace: Tensor, aperture: object) -> None:
    if not bool(torch.isfinite(trace).all()):
        raise ValueError(
            f"aperture {aperture} is too large for data of this size: aperture² · R overflows "
            f"{trace.dtype}; scale the data or lower the aperture"
        )
