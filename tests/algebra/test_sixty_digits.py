"""AND and OR against their defining formulas in 60-digit arithmetic, at the extremes.

What a conceptor stores, odds and directions as rounded to its dtype, counts as exact; directions
that rounding left not quite orthonormal stand for the nearest ones that are.
"""

from collections.abc import Iterator
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from helpers import generator, normal, rotation

DIGITS = 60
GUARD = 3 * DIGITS  # what the inverses of limits (below) lose
SPECTRA = ("wide", "ends", "repeated", "deficient", "full", "mixed", "hard", "data")
POSITIONS = ("common", "parallel", "partly", "free")
FORMS = ("dense", "factored", "negated")
FEW, MANY = range(110), range(2106)
BOUNDS = {  # of AND and OR, in the Frobenius norm
    torch.float64: (1.4e-8, 1e-9),
    torch.float32: (1e-5, 1e-5),
}


def draw(seed: int, dtype: torch.dtype) -> tuple[Conceptor, Conceptor]:
    """Two conceptors of one space of 1 to 6 dimensions, extreme in one way or another.

    Singular values reach from 1e-12 to 1 - 1e-12, repeat, or are exactly 0 and 1; ranges are the
    same, at angles of 1e-2 to 1e-6, or free.
    """
    pick = generator(seed)

    def one_of(names: tuple[str, ...]) -> str:
        return names[int(torch.randint(len(names), (), generator=pick))]

    dim = 1 + seed % 6
    position = one_of(POSITIONS)
    shared = {"common": dim, "partly": dim // 2}.get(position, 0)
    basis = _turned(shared, rotation(seed, dim - shared))
    near = 10.0 ** (-2 - 4 * float(torch.rand((), generator=pick)))
    pair = []
    for i in range(2):
        vectors = basis
        if i and position in ("parallel", "partly"):
            private = basis[shared:, shared:] + near * rotation(seed + 7, dim - shared)
            vectors = _turned(shared, torch.linalg.qr(private).Q)
        elif i and position == "free":
            vectors = rotation(seed + 7, dim)
        kind, form = one_of(SPECTRA), one_of(FORMS)
        pair.append(_conceptor(kind, form, vectors.to(dtype), 2 * seed + i))
    return pair[0], pair[1]


def is_clear(a: Conceptor, b: Conceptor) -> bool:
    """Whether what they claim fully, or not at all, is the same or at angles of 1e-6 and more.

    AND and OR jump where such an angle vanishes, so that in between they are a matter of opinion.
    """
    for claimed in (0.0, 1.0):
        spaces = []
        for conceptor in (a, b):
            vectors, values, _ = conceptor.dense().to(torch.float64).spectrum
            spaces.append(vectors[:, values == claimed])
        for u, v in (spaces, reversed(spaces)):
            sines = torch.linalg.svdvals(v - u @ (u.mT @ v))
            if bool(((sines > 1e-13) & (sines < 1e-6)).any()):
                return False
    return True


def _turned(shared: int, private: Tensor) -> Tensor:
    """Axes, which rounding leaves exactly shared, and private directions."""
    axes = torch.eye(shared, dtype=torch.float64)
    return torch.block_diag(axes, private) if len(private) else axes


def _conceptor(kind: str, form: str, vectors: Tensor, seed: int) -> Conceptor:
    dim, pick = len(vectors), generator(seed)
    if kind == "data":
        rows = normal(seed, 2 * dim, dim).to(vectors) @ (vectors * torch.logspace(0, -2, dim))
        return Conceptor.from_states(rows, 10.0 ** float(4 * torch.rand((), generator=pick) - 2))
    values = _values(kind, dim, pick).to(vectors)
    if form == "dense":
        return Conceptor.from_spectrum(vectors, values)
    rank = int(torch.randint(dim + 1, (), generator=pick))
    part = Conceptor.from_spectrum(vectors[:, :rank], values[:rank])
    return ~part if form == "negated" else part


def _values(kind: str, dim: int, pick: torch.Generator) -> Tensor:
    odds = 10.0 ** (24 * torch.rand(dim, generator=pick, dtype=torch.float64) - 12)
    which = torch.randint(3, (dim,), generator=pick)
    if kind == "ends":
        odds = torch.tensor([1e-12, 1.0, 1e12], dtype=torch.float64)[which]
    elif kind == "repeated":
        odds = odds[which.clamp_max(dim - 1)]
    elif kind == "deficient":
        odds = torch.where(which > 0, odds, 0.0)
    elif kind == "full":
        odds = torch.where(which > 0, odds, torch.inf)
    elif kind == "mixed":
        odds = torch.where(which == 0, odds, torch.where(which == 1, 0.0, torch.inf))
    elif kind == "hard":
        odds = torch.where(which == 0, 0.0, torch.inf)
    return torch.where(odds.isinf(), 1.0, odds / (1 + odds))


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    with mpmath.workdps(GUARD):
        yield


def conjoined(a: Any, b: Any) -> Any:
    """A ∧ B = (A⁻¹ + B⁻¹ - I)⁻¹."""
    return mpmath.inverse(mpmath.inverse(a) + mpmath.inverse(b) - mpmath.eye(a.rows))


def disjoined(a: Any, b: Any) -> Any:
    """A ∨ B = ¬(¬A ∧ ¬B), with ¬C = I - C."""
    eye = mpmath.eye(a.rows)
    return eye - conjoined(eye - a, eye - b)


def of_states(*tasks: tuple[Tensor, float]) -> Any:
    """C = Q (I + Q)⁻¹ with Q = Σ α² Xᵀ X / n over tasks (X, α)."""
    odds = mpmath.zeros(tasks[0][0].shape[1])
    for states, aperture in tasks:
        X = _exactly(states)
        odds += X.T * X * (mpmath.mpf(aperture) ** 2 / X.rows)
    return odds * mpmath.inverse(odds + mpmath.eye(odds.rows))


def distance(result: Conceptor, wanted: Any) -> float:
    """The Frobenius norm of the difference."""
    return float(mpmath.norm(_exactly(result.matrix()) - wanted))


def _matrix(conceptor: Conceptor) -> Any:
    """C = R (R + α⁻² I)⁻¹ of data, else U diag(s) Uᵀ + rest (I - U Uᵀ).

    Exact 0 and 1, of which there are no inverses, are limits: 1e-60 is put in for 0.
    """
    tiny = mpmath.mpf(10) ** -DIGITS
    form, eye = conceptor.form, mpmath.eye(conceptor.dim)
    odds_matrix = getattr(form, "matrix", None)
    if odds_matrix is not None:  # Q = α² R
        odds = _exactly(odds_matrix)
        return odds * mpmath.inverse(odds + eye)
    parts = form.spectrum()
    vectors, count = _exactly(parts.vectors), parts.rank
    for _ in range(6):  # each squares the error
        vectors = vectors * (3 * mpmath.eye(count) - vectors.T * vectors) / 2 if count else vectors
    rest = 1 - tiny if parts.rest and not parts.is_dense else tiny
    matrix = rest * eye
    for i, odds in enumerate(parts.odds.tolist()):
        value = 1 - tiny if odds == float("inf") else mpmath.mpf(odds) / (1 + mpmath.mpf(odds))
        column = vectors[:, i]
        matrix += (max(value, tiny) - rest) * (column * column.T)
    return matrix


def _exactly(matrix: Tensor) -> Any:
    rows, columns = matrix.shape
    exact = mpmath.matrix(rows, columns)
    for i, row in enumerate(matrix.tolist()):
        for j, entry in enumerate(row):
            exact[i, j] = mpmath.mpf(entry)
    return exact


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.soak)], ids=len)
def test_and_and_or_at_the_extremes(seeds: range, dtype: torch.dtype) -> None:
    """Over all draws that have one answer."""
    errors = []
    for A, B in (draw(seed, dtype) for seed in seeds):
        if is_clear(A, B):
            a, b = _matrix(A), _matrix(B)
            errors.append((distance(A & B, conjoined(a, b)), distance(A | B, disjoined(a, b))))
    assert len(errors) > 0.98 * len(seeds)
    for largest, bound in zip(map(max, zip(*errors)), BOUNDS[dtype]):
        assert largest < bound


DECADES = (0, 4, 7, 8, 9, 12)


@pytest.mark.parametrize("decades", DECADES)
@pytest.mark.parametrize("count", [40, 4])
@pytest.mark.parametrize("kind", ["column", "timestamp", "rows"])
def test_states_of_very_different_scales(kind: str, count: int, decades: int) -> None:
    X, scale = normal(3, count, 6), 10.0**decades
    if kind == "column":
        X[:, 0] *= scale
    elif kind == "rows":
        X[:2] *= scale
    else:  # nearly constant, beside the constant column of a bias
        X[:, 0], X[:, 1] = scale * (1 + 1e-4 * X[:, 0]), 1.0
    C, wanted = Conceptor.from_states(X, 3.0), of_states((X, 3.0))
    vectors, values, _ = C.dense().spectrum
    assert distance(C, wanted) < 1e-9
    assert distance(Conceptor.from_matrix((vectors * values) @ vectors.mT), wanted) < 1e-9


@pytest.mark.parametrize("decades", DECADES)
@pytest.mark.parametrize("count", [40, 4, 1])
def test_or_at_equal_aperture_is_the_conceptor_of_the_sum(count: int, decades: int) -> None:
    """C(R₁) ∨ C(R₂) = C(R₁ + R₂), also of deficient ranks, and where R₂ is much larger."""
    X, Y = normal(1, count, 6), normal(2, count, 2) @ normal(3, 2, 6) * 10.0**decades
    both = Conceptor.from_states(X, 3.0) | Conceptor.from_states(Y, 3.0)
    assert distance(both, of_states((X, 3.0), (Y, 3.0))) < 1e-6
