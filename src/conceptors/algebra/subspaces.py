"""Sums and intersections of subspaces: what AND and OR are where singular values are 0 and 1.

A subspace is given by orthonormal columns `[..., d, k]`, or as all that is orthogonal to them. In a
batch, zero columns fill up to the largest dimension. Neither the sum nor the intersection is a
continuous function of subspaces, so that an angle must be named below which directions are the same
(`same_angle`). All decisions are made on sines, never on cosines: 1 - cos of an angle of 1e-6 is
5e-13, of which rounding leaves three digits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Subspace(NamedTuple):
    """The span of orthonormal columns, or its orthogonal complement."""

    basis: Tensor  # [..., d, k]
    complement: bool = False


def same_angle(kept: torch.dtype) -> float:
    """Directions at a smaller angle are the same: 1e-7, and 4.8e-7 for those kept in float32.

    Rounding to float32 turns a subspace by up to 1e-7; data in float32 are no better. Directions
    of float64 have more digits, but two tasks on the same subspace do not find it in all of them.
    """
    return max(1e-7, 4 * torch.finfo(kept).eps)


def joined(a: Subspace, b: Subspace, least: float) -> Subspace:
    """a + b. Unless both are spans, without batch."""
    if a.complement and b.complement:
        return Subspace(_shared(a.basis, b.basis, least), complement=True)
    if a.complement or b.complement:
        outside, inside = (a, b) if a.complement else (b, a)
        left = _where_small(inside.basis.mT @ outside.basis, least)
        return Subspace(outside.basis @ left, complement=True)
    return Subspace(torch.cat([a.basis, added(a.basis, b.basis, least)], -1))


def added(u: Tensor, v: Tensor, least: float) -> Tensor:
    """Orthonormal columns `[..., d, k]` for what the columns of v add to the span of those of u.

    Directions of v at an angle to span(u) whose sine is at most `least` add nothing. In a batch
    zero columns, after all others, fill up to the largest k. At most 3 d r numbers are held.
    """
    basis: Tensor
    basis, triangle = torch.linalg.qr(v - u @ (u.mT @ v))
    left, sines, _ = torch.linalg.svd(triangle)
    is_new = sines > least  # descending, so that new ones come first
    count = int(is_new.sum(-1).amax()) if is_new.numel() else 0
    if not count:
        return basis[..., :0]
    found = (basis @ left[..., :count]) * is_new[..., None, :count]
    found = found - u @ (u.mT @ found)  # directions of tiny sine need it again
    orthonormal: Tensor = torch.linalg.qr(found).Q * is_new[..., None, :count]
    return orthonormal


def _shared(u: Tensor, v: Tensor, least: float) -> Tensor:
    """Orthonormal columns `[d, k]` for the directions of u that v has too."""
    return u @ _where_small(u - v @ (v.mT @ u), least)


def _where_small(matrix: Tensor, least: float) -> Tensor:
    """Orthonormal columns x `[k, m]` with |matrix x| <= least, for a matrix `[n, k]`."""
    rows, columns = matrix.shape
    if rows > columns:
        matrix = torch.linalg.qr(matrix, mode="r").R
    _, sines, right = torch.linalg.svd(matrix, full_matrices=True)
    large = int((sines > least).sum())
    found: Tensor = right[large:].mT
    return found
