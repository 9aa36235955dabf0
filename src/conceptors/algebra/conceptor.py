"""The conceptor as an immutable value with operators."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from conceptors._internal import checks
from conceptors.algebra import logic
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.base import ConceptorBase
from conceptors.algebra.forms import Change, OddsForm, SpectrumForm, truncations
from conceptors.algebra.spectrum import Spectrum


class Conceptor(ConceptorBase):
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

    __slots__ = ()

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(
            "make a Conceptor with Conceptor.from_states(X, aperture=...), .from_correlation, "
            ".from_matrix, .from_spectrum, .zero or .identity"
        )

    def _with(self, spectrum: Spectrum, aperture: Tensor | None = None) -> Conceptor:
        return self.from_form(SpectrumForm(spectrum, self.dtype), aperture)

    # --- making ---------------------------------------------------------------------------

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

    def matrix(self) -> Tensor:
        """The d x d matrix, `[..., d, d]`."""
        if self.is_factored:
            return spectra.to_matrix(self.form.spectrum())
        return self.form.dense(keep=False)

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
        return truncations(self.form.spectrum())[0]

    # --- logic ----------------------------------------------------------------------------

    def __invert__(self) -> Conceptor:
        """NOT: I - C."""
        return self._with(spectra.negate(self.form.spectrum()))

    def __or__(self, other: Conceptor) -> Conceptor:
        """OR: what either claims. At equal aperture the conceptor of the sum of correlations."""
        if not isinstance(other, Conceptor):
            return NotImplemented
        self._check_partner(other)
        aperture = _common_aperture(self._aperture, other._aperture)
        if isinstance(self.form, OddsForm) and isinstance(other.form, OddsForm):
            both = OddsForm(self.form.matrix + other.form.matrix, self.dtype)
            if bool(torch.isfinite(both.trace()).all()) and spectra.is_accurate(both.matrix):
                return self.from_form(both, aperture)
        parts = self.form.exact_spectrum(), other.form.exact_spectrum()
        return self._with(logic.disjoin(*parts, self.dtype), aperture)

    def __and__(self, other: Conceptor) -> Conceptor:
        """AND: what both claim, ¬(¬A ∨ ¬B)."""
        if not isinstance(other, Conceptor):
            return NotImplemented
        self._check_partner(other)
        parts = self.form.exact_spectrum(), other.form.exact_spectrum()
        return self._with(logic.conjoin(*parts, self.dtype))

    def __le__(self, other: Conceptor) -> Tensor:
        """Whether `other` - self has no negative eigenvalue, up to rounding: bool `[...]`."""
        if not isinstance(other, Conceptor):
            return NotImplemented
        self._check_partner(other)
        return logic.precedes(self.form.spectrum(), other.form.spectrum())

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
        return self._with(spectra.adapt(self.form.spectrum(), gamma), aperture)

    def harden(self, threshold: float = 0.5) -> Conceptor:
        """A hard projector: singular values >= threshold become 1, the others 0."""
        threshold = checks.number(threshold, "threshold", 0.0, 1.0, open_low=True)
        return self._with(spectra.harden(self.form.spectrum(), threshold))

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
            return x @ self.form.dense()
        if x.ndim == 1:
            return spectra.project(self.form.spectrum(), x[None]).squeeze(-2)
        return spectra.project(self.form.spectrum(), x)

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
        parts = self.form.spectrum()
        errors, rests = truncations(parts)
        if rank is None:
            enough = (errors <= allowed).reshape(-1, errors.shape[-1]).all(0)
            rank = int(enough.nonzero()[0])
        if rank == self.dim:
            return self
        rank = min(rank, parts.rank)
        return self._with(spectra.truncate(parts._replace(rest=rests[rank]), rank), self._aperture)

    def top_k(self, rank: int) -> Conceptor:
        """Only the `rank` largest singular values, all others 0, in factored form.

        >>> import torch
        >>> C = Conceptor.from_correlation(torch.diag(torch.tensor([9.0, 1.0, 3.0])), 1.0)
        >>> C.top_k(2).singular_values
        tensor([0.9000, 0.7500, 0.0000])
        """
        rank = checks.whole(rank, "rank", 0, self.dim)
        return self._with(self.form.top(rank), self._aperture)

    def dense(self) -> Conceptor:
        """The same conceptor with all d directions."""
        if not self.is_factored:
            return self
        parts = spectra.cast(self.form.spectrum(), spectra.work_dtype(self.form.tensor))
        return self._with(spectra.complete(parts), self._aperture)

    def to(
        self,
        device: torch.device | torch.dtype | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Conceptor:
        """On another device, in another dtype (float32 or float64); `to(dtype)` works too."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        dtype = self.dtype if dtype is None else checks.real_dtype(dtype)
        moved = self.mapped(lambda tensor, _: tensor.to(device))
        aperture = moved._aperture
        if dtype != self.dtype and aperture is not None:
            aperture = _note(aperture.to(dtype))
        return self.from_form(moved.form.cast(dtype), aperture)

    def __getitem__(self, index: Any) -> Conceptor:
        """A member, or a part, of a batch."""
        if not self.batch_shape:
            raise IndexError("this is a single conceptor, not a batch; there is nothing to index")
        count = math.prod(self.batch_shape)
        flat = torch.arange(count).reshape(self.batch_shape)[index]
        if not flat.numel():
            raise IndexError(f"{index} selects nothing from a batch of {list(self.batch_shape)}")
        return self.mapped(
            lambda tensor, kept: tensor.reshape(count, *kept)[flat.to(tensor.device)]
        )

    def mapped(self, change: Change) -> Conceptor:
        """The same change to every tensor held, told its shape beyond the batch."""
        depth, aperture = len(self.batch_shape), self._aperture
        if aperture is not None:
            aperture = change(aperture, aperture.shape[depth:])
        return self.from_form(self.form.mapped(change, depth), aperture)

    def allclose(self, other: Conceptor, atol: float | None = None) -> bool:
        """Whether the matrices agree to `atol`, by default the square root of epsilon."""
        self._check_partner(other)
        if atol is None:
            atol = math.sqrt(torch.finfo(self.dtype).eps)
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
        return Conceptor.from_form, (self.form, self._aperture)

    def __repr__(self) -> str:
        batch = f"batch={list(self.batch_shape)}, " if self.batch_shape else ""
        alpha = self.aperture
        shown = f", aperture={alpha:g}" if isinstance(alpha, float) else ""
        return (
            f"Conceptor({batch}dim={self.dim}, rank={self.rank}, "
            f"quota={float(self.quota.mean()):.3f}{shown}, "
            f"dtype={str(self.dtype).removeprefix('torch.')}, device={self.device})"
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
        return torch.empty(0, dtype=self.dtype, device=self.device)


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
        return logic.similarity(a.form.spectrum(), b.form.spectrum())
    return logic.similarity_of_matrices(a.form.dense(), b.form.dense())


def _common_aperture(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return None
    same = a.shape == b.shape and bool((a == b).all())
    return a if same else None


def _note(aperture: Tensor) -> Tensor | None:
    """An aperture to remember, if it is one."""
    return aperture if bool(((aperture > 0) & torch.isfinite(aperture)).all()) else None
