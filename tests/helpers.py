"""Conceptors of every kind, references, and a meter of memory, for several test files."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conceptors import Conceptor

KINDS = ("soft", "wide", "deficient", "hard", "mixed", "zero", "identity", "data")
FORMS = ("dense", "factored", "negated")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def rotation(seed: int, dim: int) -> Tensor:
    """A random orthogonal matrix."""
    orthogonal: Tensor = torch.linalg.qr(normal(seed, dim, dim)).Q
    return orthogonal


def symmetric(seed: int, *shape: int) -> Tensor:
    """A random correlation matrix `[..., d, d]` of full rank, from `[..., n, d]` samples."""
    x = normal(seed, *shape)
    return x.mT @ x / shape[-2]


def wide_states(seed: int, count: int, dim: int, decades: float) -> Tensor:
    """Samples whose standard deviations fall from 1 to 10^-decades, in random directions."""
    scales = torch.logspace(0, -decades, dim, dtype=torch.float64)
    return normal(seed, count, dim) * scales @ rotation(seed + 1, dim)


def inverse_formula(R: Tensor, aperture: float) -> Tensor:
    """C = R (R + α⁻² I)⁻¹ as the paper prints it."""
    result: Tensor = R @ torch.linalg.inv(R + aperture**-2 * eye(R.shape[-1]))
    return result


def values(kind: str, dim: int, seed: int) -> Tensor:
    """Singular values of a kind: within (0, 1), over many decades, or with exact 0 and 1."""
    draw = torch.rand(dim, generator=generator(seed), dtype=torch.float64)
    if kind == "wide":
        odds = 10.0 ** (12 * draw - 6)
        return odds / (1 + odds)
    soft = 0.02 + 0.96 * draw
    which = torch.randint(0, 3, (dim,), generator=generator(seed + 1))
    special = {
        "deficient": torch.where(which > 0, soft, 0.0),
        "hard": (draw > 0.5).double(),
        "mixed": torch.where(which == 0, soft, (which == 1).double()),
        "zero": torch.zeros_like(soft),
        "identity": torch.ones_like(soft),
    }
    return special.get(kind, soft)


def build(kind: str, form: str, vectors: Tensor, seed: int) -> Conceptor:
    """A conceptor of a kind in a form: with all directions, with some of them, or NOT of that."""
    dim = len(vectors)
    if kind == "data":  # not factored yet: the lazy form
        return Conceptor.from_states(normal(seed, 2 * dim, dim) @ vectors, aperture=2.0)
    s = values(kind, dim, seed)
    if form == "dense":
        return Conceptor.from_spectrum(vectors, s)
    rank = seed % dim
    factored = Conceptor.from_spectrum(vectors[:, :rank], s[:rank])
    return ~factored if form == "negated" else factored


@st.composite
def conceptors(draw: st.DrawFn, count: int, kinds: tuple[str, ...] = KINDS) -> list[Conceptor]:
    """`count` conceptors of one space, which share directions often enough to matter.

    Their directions are a common basis (they commute), that basis turned within a part of the
    space (ranges intersect), or independent.
    """
    dim, seed = draw(st.integers(1, 7)), draw(st.integers(0, 10**6))
    basis = rotation(seed, dim)
    drawn = []
    for i in range(count):
        kind, form = draw(st.sampled_from(kinds)), draw(st.sampled_from(FORMS))
        position = draw(st.sampled_from(("common", "turned", "free")))
        vectors = basis[:, torch.randperm(dim, generator=generator(seed + i))]
        if position == "turned" and dim > 1:
            half = dim // 2
            vectors = torch.cat(
                [vectors[:, :half] @ rotation(seed + i, half), vectors[:, half:]], 1
            )
        if position == "free":
            vectors = rotation(seed + 17 * i + 1, dim)
        drawn.append(build(kind, form, vectors, seed + 101 * i))
    return drawn


def distance(a: Conceptor | Tensor, b: Conceptor | Tensor) -> float:
    """The spectral norm of the difference, the largest over a batch."""
    x, y = (c.matrix() if isinstance(c, Conceptor) else c for c in (a, b))
    assert x.shape == y.shape, (x.shape, y.shape)
    return float(torch.linalg.matrix_norm(x.double() - y.double(), 2).amax())


def same(a: Conceptor | Tensor, b: Conceptor | Tensor, atol: float = 1e-8) -> bool:
    return distance(a, b) <= atol


def eye(dim: int) -> Tensor:
    return torch.eye(dim, dtype=torch.float64)


def reference_and(a: Tensor, b: Tensor) -> Tensor:
    """Jaeger's AND for singular matrices, word by word, by pseudo-inverses and null spaces.

    With W an orthonormal basis of the intersection of the ranges of A and B, it is
    W (Wᵀ (A⁺ + B⁺ - I) W)⁻¹ Wᵀ.
    """
    outside = [_null_space(m) for m in (a, b)]  # range(A) ∩ range(B) = (null A + null B)^⊥
    w = _null_space(torch.cat(outside, 1).mT)
    middle = torch.linalg.pinv(a, rtol=1e-12) + torch.linalg.pinv(b, rtol=1e-12) - eye(len(a))
    result: Tensor = w @ torch.linalg.inv(w.mT @ middle @ w) @ w.mT
    return result


def reference_or(a: Tensor, b: Tensor) -> Tensor:
    """OR by De Morgan from `reference_and`."""
    identity = eye(len(a))
    return identity - reference_and(identity - a, identity - b)


def _null_space(matrix: Tensor) -> Tensor:
    """Orthonormal columns that span the null space of `[m, n]`."""
    if 0 in matrix.shape:
        return eye(matrix.shape[1])
    _, s, vh = torch.linalg.svd(matrix, full_matrices=True)
    rank = int((s > 1e-10 * s.max().clamp_min(1e-300)).sum())
    result: Tensor = vh[rank:].mT
    return result


def weights(model: nn.Module) -> list[Tensor]:
    """Copies of all parameters."""
    return [p.detach().clone() for p in model.parameters()]


def drift(now: Tensor, before: Tensor) -> float:
    """|now - before| / |before|."""
    return float((now.detach() - before).norm() / before.norm())


@contextmanager
def in_silence() -> Iterator[None]:
    """Let no warning pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest result of any operation."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                stored = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.elements = max(self.elements, stored)
        return out


def largest_tensor(work: Callable[[], object]) -> int:
    """Elements of the largest tensor that `work` creates."""
    seen = LargestTensor()  # type: ignore[no-untyped-call]
    with seen:
        work()
    return seen.elements
