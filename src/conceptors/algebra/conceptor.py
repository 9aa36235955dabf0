"""The class `Conceptor`, an immutable value with operators, and `similarity`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conceptors._internal import checks, storage
from conceptors.algebra import logic
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.checks import check_broadcast, check_spectrum, check_states
from conceptors.algebra.forms import Change, Form, OddsForm, SpectrumForm
from conceptors.algebra.spectrum import Spectrum

Device = torch.device | str | None
_FORMAT, _VERSION = "conceptors.Conceptor", "1"  # of files


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Conceptor:
    """A soft projection onto the directions that data occupies.

    C = R (R + α⁻² I)⁻¹ minimises E‖x - C x‖² + α⁻² ‖C‖², where R = E[x xᵀ]. The aperture α decides
    how small a variance still counts. C is symmetric; its eigenvalues s = σ / (σ + α⁻²) lie in
    [0, 1] and are called singular values, as in the conceptor literature.

    Create one with `from_states`, `from_correlation`, `from_matrix`, `from_spectrum`, `zero` or
    `identity`. Leading dimensions form a batch of conceptors. A conceptor never changes: every
    operation returns a new one.

    >>> import torch
    >>> from conceptors import Conceptor, similarity
    >>> X = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    >>> C = Conceptor.from_states(X, aperture=1.0)
    >>> C.singular_values
    tensor([0.6667, 0.3333, 0.0000], dtype=torch.float64)
    >>> C
    Conceptor(dim=3, rank=2, quota=0.333, dtype=float64, device=cpu)
    >>> (~C).singular_values
    tensor([1.0000, 0.6667, 0.3333], dtype=torch.float64)
    >>> bool(C <= (C | C)), bool((C & ~C) <= C)
    (True, True)
    """

    form: Form

    def __init__(self, form: Any = None, *_: Any, **__: Any) -> None:
        if not isinstance(form, Form):
            raise TypeError(
                "Conceptor(...) is not supported; use Conceptor.from_states(X, aperture=...), "
                ".from_correlation, .from_matrix, .from_spectrum, .zero or .identity"
            )
        object.__setattr__(self, "form", form)

    # --- creation -------------------------------------------------------------------------

    def _with(self, spectrum: Spectrum) -> Conceptor:
        return Conceptor(SpectrumForm(spectrum, self.dtype))

    @classmethod
    def from_states(cls, states: Tensor, aperture: float | Tensor) -> Conceptor:
        """Compute the conceptor of samples in rows, with R = Xᵀ X / n.

        Second moments and factorisations are computed in float64; the result has the dtype of the
        states. Fewer samples than dimensions give the factored form, which is exact.

        Args:
            states: `[n, d]`, or a batch `[..., n, d]`; float32 or float64, tensor or numpy array.
            aperture: α > 0, one number or one per member of the batch.

        Raises:
            TypeError: the states are not float32 or float64.
            ValueError: the states are empty or not finite, or the aperture is not positive.
        """
        rows = check_states(states)
        alpha = checks.aperture(aperture, rows.shape[:-2], rows)
        count, dim = rows.shape[-2:]
        wide = rows.double() * (alpha.double() / math.sqrt(count))[..., None, None]
        _check_overflow(wide.square().sum((-2, -1)), aperture)
        odds = wide.mT @ wide if count >= dim else None
        if odds is None or not spectra.is_accurate(odds):
            return cls(SpectrumForm(spectra.from_rows(wide), rows.dtype))
        return cls(OddsForm(odds, rows.dtype))

    @classmethod
    def from_correlation(cls, correlation: Tensor, aperture: float | Tensor) -> Conceptor:
        """Compute the conceptor of a correlation matrix R = E[x xᵀ], `[..., d, d]`.

        Raises:
            TypeError, ValueError: the matrix is not a float32 or float64 correlation matrix, or
                the aperture is not positive.
        """
        matrix = checks.positive_semidefinite(correlation, "correlation")
        return cls.from_second_moment(matrix, aperture)

    @classmethod
    def from_second_moment(cls, matrix: Tensor, aperture: float | Tensor) -> Conceptor:
        """Compute `from_correlation` without checking that the matrix is E[x xᵀ]."""
        alpha = checks.aperture(aperture, matrix.shape[:-2], matrix)
        scale = alpha.double()[..., None, None]
        form = OddsForm(matrix.double() * scale * scale, matrix.dtype)
        _check_overflow(form.trace(), aperture)
        return cls(form)

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> Conceptor:
        """Wrap a symmetric matrix `[..., d, d]` with eigenvalues in [0, 1]."""
        x = checks.symmetric(matrix, "matrix")
        values, vectors = torch.linalg.eigh(x.double())
        low, high, rounding = float(values.amin()), float(values.amax()), checks.loose(x.dtype)
        if not -rounding <= low <= high <= 1 + rounding:
            raise ValueError(
                f"matrix of shape {list(x.shape)} is not a conceptor: its eigenvalues reach from "
                f"{low:.4g} to {high:.4g} where [0, 1] is needed; for a correlation matrix use "
                f"Conceptor.from_correlation"
            )
        values = spectra.snap(values, spectra.tolerance(x.shape[-1], x.dtype))
        return cls(SpectrumForm(Spectrum(vectors, values / (1 - values)), x.dtype))

    @classmethod
    def from_spectrum(cls, vectors: Tensor, values: Tensor, *, rest: float = 0.0) -> Conceptor:
        """Build the factored form C = U diag(s) Uᵀ + rest (I - U Uᵀ) without a d x d matrix.

        Args:
            vectors: U `[..., d, r]` with orthonormal columns.
            values: s `[..., r]` in [0, 1].
            rest: singular value, 0 or 1, of all directions orthogonal to U.
        """
        vectors, values, rest = check_spectrum(vectors, values, rest)
        odds = values.double() / (1 - values.double())
        columns = spectra.orthonormalised(vectors.double())
        spectrum = Spectrum(columns, odds, math.inf if rest else 0.0)
        return cls(SpectrumForm(spectrum, vectors.dtype))

    @classmethod
    def zero(
        cls, dim: int, *, dtype: torch.dtype = torch.float64, device: Device = None
    ) -> Conceptor:
        """Return the conceptor that includes nothing, C = 0."""
        dim, dtype = checks.whole(dim, "dim", 1), checks.real_dtype(dtype)
        vectors = torch.zeros(dim, 0, dtype=dtype, device=device)
        return cls(SpectrumForm(Spectrum(vectors, vectors[0].clone()), dtype))

    @classmethod
    def identity(
        cls, dim: int, *, dtype: torch.dtype = torch.float64, device: Device = None
    ) -> Conceptor:
        """Return the conceptor that includes everything, C = I."""
        return ~cls.zero(dim, dtype=dtype, device=device)

    # --- properties -----------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """d, the size of the space."""
        return self.form.tensor.shape[-2]

    @property
    def rank(self) -> int:
        """Number of stored directions; `dim` in the dense form."""
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
    def is_factored(self) -> bool:
        """Whether fewer than `dim` directions are stored."""
        return self.rank < self.dim

    @property
    def singular_values(self) -> Tensor:
        """All d singular values, descending, in [0, 1]: `[..., d]`."""
        return spectra.singular_values(self.form.spectrum())

    @property
    def spectrum(self) -> tuple[Tensor, Tensor, float]:
        """(U `[..., d, r]`, s `[..., r]`, rest): C = U diag(s) Uᵀ + rest (I - U Uᵀ)."""
        parts = self.form.spectrum()
        values = spectra.values_of(parts.odds)
        return parts.vectors.clone(), values, spectra.value_of_rest(parts)

    @property
    def quota(self) -> Tensor:
        """Mean singular value: the share of the space that C includes, `[...]`."""
        return spectra.singular_values(self.form.exact_spectrum()).mean(-1).to(self.dtype)

    def odds_trace(self) -> Tensor:
        """Return tr Q `[...]` of the odds Q = C (I - C)⁻¹ = α² R; infinite where any s is 1."""
        return self.form.trace()

    def matrix(self) -> Tensor:
        """Return the d x d matrix, `[..., d, d]`."""
        return spectra.to_matrix(self.form.exact_spectrum()).to(self.dtype)

    # --- logic ----------------------------------------------------------------------------

    def __invert__(self) -> Conceptor:
        """NOT: I - C."""
        return self._with(spectra.negate(self.form.spectrum()))

    def __or__(self, other: Conceptor) -> Conceptor:
        """OR: what either includes. At equal aperture, correlation matrices add."""
        self._check_partner(other)
        if isinstance(self.form, OddsForm) and isinstance(other.form, OddsForm):
            both = OddsForm(self.form.matrix + other.form.matrix, self.dtype)
            if bool(torch.isfinite(both.trace()).all()) and spectra.is_accurate(both.matrix):
                return Conceptor(both)
        parts = self.form.exact_spectrum(), other.form.exact_spectrum()
        return self._with(logic.disjoin(*parts, self.dtype))

    def __and__(self, other: Conceptor) -> Conceptor:
        """AND: what both include, ¬(¬A ∨ ¬B)."""
        self._check_partner(other)
        parts = self.form.exact_spectrum(), other.form.exact_spectrum()
        return self._with(logic.conjoin(*parts, self.dtype))

    def __le__(self, other: Conceptor) -> Tensor:
        """Whether `other` - self has no negative eigenvalue, up to rounding: bool `[...]`."""
        self._check_partner(other)
        return logic.precedes(self.form.spectrum(), other.form.spectrum())

    def adapt(self, gamma: float) -> Conceptor:
        """Multiply the aperture by γ: φ(C, γ) = C (C + γ⁻² (I - C))⁻¹ for γ in [0, ∞].

        φ(C, ∞) is the hard projector onto the range of C. φ(C, 0) retains only directions whose
        singular value is exactly 1; for a conceptor of data it is 0.

        >>> import math, torch
        >>> C = Conceptor.from_states(torch.eye(2), aperture=1.0)
        >>> [round(float(C.adapt(g).quota), 3) for g in (0, 1, 10, math.inf)]
        [0.0, 0.333, 0.98, 1.0]
        """
        gamma = checks.number(gamma, "gamma", 0.0, math.inf)
        return self._with(spectra.adapt(self.form.spectrum(), gamma))

    def harden(self, threshold: float = 0.5) -> Conceptor:
        """Return a hard projector: singular values >= threshold become 1, the others 0."""
        threshold = checks.number(threshold, "threshold", 0.0, 1.0, open_low=True)
        return self._with(spectra.harden(self.form.spectrum(), threshold))

    def allclose(self, other: Conceptor, atol: float | None = None) -> bool:
        """Whether the matrices agree to within `atol` (default: the square root of epsilon)."""
        self._check_partner(other)
        atol = checks.loose(self.dtype) if atol is None else atol
        return bool(torch.allclose(self.matrix(), other.matrix(), rtol=0.0, atol=atol))

    # --- products with vectors ------------------------------------------------------------

    def __matmul__(self, x: Tensor) -> Tensor:
        """Project the vectors in the last dimension of x: C x.

        A single conceptor accepts `[..., d]`. A batch `[..., d, d]` accepts rows `[..., n, d]` and
        broadcasts like matrix products; one vector `[d]` is multiplied by every member.
        """
        if isinstance(x, Conceptor):
            raise TypeError(
                "C @ D of two conceptors is not a conceptor; use A & B, or A.matrix() @ B.matrix()"
            )
        x = checks.real_tensor(x, "x")
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise ValueError(
                f"x must have shape [..., {self.dim}] for a conceptor of dimension {self.dim}, got "
                f"{list(x.shape)}; transpose x if its samples are columns"
            )
        checks.same_kind(x, self, "x", "the conceptor")
        check_broadcast(self.batch_shape, x.shape[:-2], f"x [..., n, d] of shape {list(x.shape)}")
        rows = x[None] if x.ndim == 1 else x
        projected = spectra.project(self.form.spectrum(), rows)
        return projected.squeeze(-2) if x.ndim == 1 else projected

    def evidence(self, x: Tensor) -> Tensor:
        """Return xᵀ C x for vectors x `[..., d]`: how much of x lies in the directions of C."""
        x = checks.real_tensor(x, "x")
        return (x * (self @ x)).sum(-1)

    # --- forms ----------------------------------------------------------------------------

    def top_k(self, rank: int | None = None) -> Conceptor:
        """Retain the `rank` largest singular values and set all others to 0, in factored form.

        By default, retain all that are above 0.
        """
        parts = self.form.spectrum()
        parts = spectra.complete(parts) if parts.rest else parts
        if rank is None:
            rank = int((parts.odds > 0).sum(-1).amax())
        rank = checks.whole(rank, "rank", 0, self.dim)
        largest = parts.odds.topk(min(rank, parts.rank), dim=-1).indices
        return self._with(spectra.take(parts, largest)._replace(rest=0.0))

    def dense(self) -> Conceptor:
        """Return the same conceptor with all d directions stored."""
        if not self.is_factored:
            return self
        parts = spectra.cast(self.form.spectrum(), torch.float64)
        return self._with(spectra.complete(parts))

    def to(
        self, device: Device | torch.dtype = None, dtype: torch.dtype | None = None
    ) -> Conceptor:
        """Move to a device or convert to a dtype (float32 or float64); `to(dtype)` works too."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        dtype = self.dtype if dtype is None else checks.real_dtype(dtype)
        moved = self.mapped(lambda tensor, _: tensor.to(device))
        return Conceptor(moved.form.cast(dtype))

    def __getitem__(self, index: Any) -> Conceptor:
        """Return a member, or a part, of a batch."""
        if not self.batch_shape:
            raise IndexError("a single conceptor is not a batch and cannot be indexed")
        count = math.prod(self.batch_shape)
        flat = torch.arange(count).reshape(self.batch_shape)[index]
        if not flat.numel():
            raise IndexError(f"{index} selects nothing from a batch of {list(self.batch_shape)}")
        return self.mapped(
            lambda tensor, shape: tensor.reshape(count, *shape)[flat.to(tensor.device)]
        )

    def mapped(self, change: Change) -> Conceptor:
        """Apply `change` to every stored tensor and its shape beyond the batch."""
        return Conceptor(self.form.mapped(change, len(self.batch_shape)))

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with version and checksum.

        The write is atomic: the file is written beside `path` and then renamed.

        Raises:
            OSError: the folder is read-only or full; an older file stays intact.
        """
        parts = self.form.spectrum()
        tensors = {"vectors": parts.vectors, "odds": parts.odds}
        header = {"format": _FORMAT, "version": _VERSION, "rest": json.dumps(self.spectrum[2])}
        storage.write(tensors, header, path)

    @classmethod
    def load(cls, path: str | Path) -> Conceptor:
        """Read a file that `save` wrote, onto the CPU. Loading executes no code.

        Raises:
            ValueError: the file is damaged, contains no conceptor, or has a newer version.
        """
        tensors, header = storage.read(path, "conceptor")
        if header.get("format") != _FORMAT:
            raise ValueError(
                f"{path} contains no conceptor (format {header.get('format')!r:.60}, tensors "
                f"{sorted(tensors)[:5]}); write it with C.save(path)"
            )
        if header.get("version") != _VERSION:
            raise ValueError(
                f"{path} has conceptor file version {header.get('version')!r:.60}; this release "
                f"reads version {_VERSION}: upgrade with pip install -U conceptors"
            )
        try:
            odds = checks.real_tensor(tensors["odds"], "odds")
            if bool((odds.isnan() | (odds < 0)).any()):
                raise ValueError("odds must be numbers in [0, inf]")
            values, rest = spectra.values_of(odds), json.loads(header["rest"])
            vectors, _, rest = check_spectrum(tensors["vectors"], values, rest)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{path} is marked as a conceptor file but its content is not valid: {error!s:.500}"
            ) from error
        spectrum = Spectrum(vectors, odds, math.inf if rest else 0.0)
        return cls(SpectrumForm(spectrum, odds.dtype))

    def __repr__(self) -> str:
        batch = f"batch={list(self.batch_shape)}, " if self.batch_shape else ""
        return (
            f"Conceptor({batch}dim={self.dim}, rank={self.rank}, "
            f"quota={float(self.quota.mean()):.3f}, "
            f"dtype={str(self.dtype).removeprefix('torch.')}, device={self.device})"
        )

    def _check_partner(self, other: Conceptor) -> None:
        if not isinstance(other, Conceptor):
            raise TypeError(f"expected a Conceptor, got {type(other).__name__}")
        if other.dim != self.dim:
            raise ValueError(
                f"conceptors of different size, {self.dim} and {other.dim}, cannot be combined; "
                f"both must describe the same space"
            )
        checks.same_kind(self, other, "one conceptor", "the other")
        shape = other.batch_shape
        check_broadcast(self.batch_shape, shape, f"a batch of shape {list(shape)}")


def similarity(a: Conceptor, b: Conceptor) -> Tensor:
    """Measure the overlap of two conceptors: ρ = tr(A B) / (‖A‖ ‖B‖) in [0, 1].

    ρ is exactly 0 if A and B are orthogonal or one of them is zero, and exactly 1 if they are
    multiples of each other. Batches broadcast; the result has the shape `[...]` of the batch.

    Raises:
        TypeError, ValueError: dtypes, dimensions, devices or batch shapes do not fit together.

    >>> import torch
    >>> A = Conceptor.from_spectrum(torch.eye(4)[:, :2], torch.tensor([1.0, 1.0]))
    >>> B = Conceptor.from_spectrum(torch.eye(4)[:, 1:3], torch.tensor([1.0, 1.0]))
    >>> similarity(A, A), similarity(A, ~A), similarity(A, B)
    (tensor(1.), tensor(0.), tensor(0.5000))
    """
    if not isinstance(a, Conceptor):
        raise TypeError(f"similarity compares two Conceptors, got {type(a).__name__}")
    a._check_partner(b)
    return logic.similarity(a.form.spectrum(), b.form.spectrum())


def _check_overflow(trace: Tensor, aperture: object) -> None:
    if not bool(torch.isfinite(trace).all()):
        raise ValueError(
            f"aperture {aperture} is too large for data of this scale: aperture² · R overflows "
            f"{trace.dtype}; scale the data or lower the aperture"
        )
