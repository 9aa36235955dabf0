"""Leading eigenvectors without the others, against eigh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Conceptor, Shield
from conceptors.algebra import eigen
from conceptors.algebra.eigen import leading, orthonormal
from conceptors.algebra.forms import OddsForm
from helpers import normal, rotation, symmetric

DIM, RANK = 512, 50
INDEX = torch.arange(1.0, DIM + 1, dtype=torch.float64)
BASIS = rotation(3, DIM)


def sampled() -> Tensor:
    """Eigenvalues of a sample of twice as many rows as columns, of a spectrum that falls slowly."""
    rows = normal(4, 2 * DIM, DIM) * INDEX**-0.5
    values: Tensor = torch.linalg.eigvalsh(rows.mT @ rows / len(rows))
    return values.flip(0).clamp_min(0)


SPECTRA: dict[str, Tensor] = {
    "1/i": 1 / INDEX,
    "slow": INDEX**-0.5,
    "fast": torch.exp(-INDEX / 3),
    "wide": 1e6 * INDEX**-3,
    "large": 1e5 / INDEX,
    "sampled": sampled(),
    "deficient": torch.where(INDEX <= 30, 1 / INDEX, 0.0),
    "zero": torch.zeros(DIM).double(),
    "identity": torch.ones(DIM).double(),
    "cluster at the cut": torch.where(
        INDEX <= 40, 1.0, torch.where(INDEX <= 70, 0.5, 1e-3 / INDEX)
    ),
    "noise beyond the cut": torch.where(INDEX <= 30, 1 / INDEX, 1e-9 + 1e-12 * (DIM - INDEX)),
    "one above all": torch.where(INDEX <= 1, 1e8, 1 / INDEX),
}


def matrix_of(values: Tensor) -> Tensor:
    matrix = (BASIS * values) @ BASIS.mT
    return (matrix + matrix.mT) / 2


@pytest.mark.parametrize("name", SPECTRA)
def test_leading_directions_are_those_of_eigh(name: str) -> None:
    exact = SPECTRA[name]
    matrix = matrix_of(exact)
    values, vectors = leading(matrix, RANK)
    top = float(exact[0])
    assert float((vectors.mT @ vectors - torch.eye(RANK)).abs().max()) < 1e-12
    optimum = float(exact[:RANK].sum())
    assert float((vectors * (matrix @ vectors)).sum()) >= optimum - 1e-6 * optimum
    assert float((values - exact[:RANK]).abs().max()) <= 1e-6 * top
    # Only directions of nearly the eigenvalue at the cut may be mixed up.
    cut, rounding = float(exact[RANK - 1]), 1e-12 * top
    inside = BASIS[:, exact > 1.1 * cut + rounding]
    outside = BASIS[:, exact < 0.9 * cut - rounding]
    assert float((inside - vectors @ (vectors.mT @ inside)).norm()) < 0.01
    assert not outside.numel() or float((outside.mT @ vectors).norm()) < 0.05


def test_a_batch_is_its_members_and_the_result_is_always_the_same() -> None:
    matrices = torch.stack([matrix_of(SPECTRA[name]) for name in ("1/i", "zero", "wide")])
    values, vectors = leading(matrices, 20)
    assert vectors.shape == (3, DIM, 20)
    again = leading(matrices, 20)
    assert torch.equal(vectors, again[1])
    for i, name in enumerate(("1/i", "zero", "wide")):
        torch.testing.assert_close(values[i], SPECTRA[name][:20], rtol=1e-6, atol=1e-9)
        if name != "zero":
            overlap = (vectors[i].mT @ BASIS[:, :20]).square().sum()
            assert float(overlap) == pytest.approx(20, abs=1e-3)


@pytest.mark.parametrize("rank", [0, 1, 40])
def test_small_matrices_and_many_directions_take_eigh(rank: int) -> None:
    matrix = symmetric(1, 80, 40)
    values, vectors = leading(matrix, rank)
    exact = torch.linalg.eigvalsh(matrix).flip(0)[:rank]
    torch.testing.assert_close(values, exact)
    torch.testing.assert_close((vectors * values) @ vectors.mT @ vectors, matrix @ vectors)


def test_no_directions_of_a_large_matrix() -> None:
    assert leading(matrix_of(SPECTRA["1/i"]), 0)[1].shape == (DIM, 0)


@pytest.mark.parametrize("kind", ["plain", "dependent", "tiny", "zero", "skewed"])
def test_orthonormal_whatever_the_columns(kind: str) -> None:
    block = normal(0, 2, 60, 8)
    if kind == "dependent":
        block[0, :, 3] = block[0, :, 4]
    elif kind == "skewed":
        block[1, :, 1:] = block[1, :, :1] + 1e-9 * block[1, :, 1:]
    else:
        block *= {"plain": 1.0, "tiny": 1e-100, "zero": 0.0}[kind]
    basis = orthonormal(block)
    assert float((basis.mT @ basis - torch.eye(8)).abs().max()) < 1e-13
    if kind != "zero":
        lost = block - basis @ (basis.mT @ block)
        assert float(lost.norm()) < 1e-12 * float(block.norm())


# --- conceptors ----------------------------------------------------------------------------


@contextmanager
def factored() -> Iterator[list[int]]:
    """Sizes of all matrices that eigh and eigvalsh factor inside."""
    sizes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("eigh", "eigvalsh"):
            original: Any = getattr(torch.linalg, name)

            def counted(x: Tensor, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                sizes.append(x.shape[-1])
                return _original(x, *args, **kwargs)

            patch.setattr(torch.linalg, name, counted)
        yield sizes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_strongest_of_a_conceptor_of_data(dtype: torch.dtype) -> None:
    R = matrix_of(100 * SPECTRA["1/i"]).to(dtype)
    C = Conceptor.from_correlation(R, 3.0)
    with factored() as sizes:
        thin = C.top_k(30)
    assert max(sizes) < 100
    full = Conceptor.from_correlation(R, 3.0)
    wanted = full.singular_values[:30]
    assert thin.rank == 30
    assert thin.aperture == 3.0
    torch.testing.assert_close(thin.singular_values[:30], wanted, rtol=1e-5, atol=1e-6)
    assert bool((thin.singular_values[30:] == 0).all())
    expected = (BASIS[:, :30] * wanted.double()) @ BASIS[:, :30].mT
    assert float((thin.matrix().double() - expected).norm()) < 1e-3
    known = C.singular_values  # whether the spectrum is known makes no difference
    assert torch.equal(C.top_k(30).matrix(), thin.matrix())
    assert known.shape == (DIM,)


@pytest.mark.parametrize("name", ["1/i", "slow", "deficient", "zero", "identity", "one above all"])
@pytest.mark.parametrize("aperture", [1e-4, 1.0, 30.0])
def test_the_quota_needs_no_eigenvalues(name: str, aperture: float) -> None:
    C = Conceptor.from_correlation(matrix_of(SPECTRA[name]), aperture)
    odds = aperture**2 * SPECTRA[name]
    exact = float((odds / (1 + odds)).mean())
    with factored() as sizes:
        quota = float(C.quota)
    rounding = 1e-15 * float(odds.max())
    assert quota == pytest.approx(exact, abs=1e-10 + rounding)
    assert not sizes or rounding > 1e-8
    C.singular_values.sum()
    assert float(C.quota) == quota


def test_a_small_quota_is_right_to_the_last_digits() -> None:
    C = Conceptor.from_correlation(matrix_of(SPECTRA["1/i"]), 1e-7)
    assert float(C.quota) == pytest.approx(1e-14 * float((1 / INDEX).mean()), rel=1e-9)


def test_remembering_and_stepping_factor_no_whole_matrix() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(600, 520), nn.Tanh(), nn.Linear(520, 4)).double()
    x = normal(0, 1500, 600) * torch.arange(1.0, 601.0) ** -0.7
    shield = Shield(model, 10.0, rank=40, warn_at_quota=1.0)
    optimizer = shield.guard(torch.optim.Adam(model.parameters()))
    with factored() as sizes:
        for _ in range(2):
            shield.remember(x)
            for _ in range(2):
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()
        assert 0 < sum(shield.quota().values()) < 2
    assert max(sizes) < eigen.SMALL
    held = shield.conceptors()["0"]
    assert isinstance(held.form, OddsForm)
    assert not held.form.is_factored_yet
    assert held.matrix().shape == (1, 601, 601)
    assert held.matrix() is not held.matrix()
