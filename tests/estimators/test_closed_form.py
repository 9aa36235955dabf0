"""Incremental ridge regression against section 2.2 of the report, written out step by step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from conceptors.estimators import closed_form
from helpers import eye, normal

ALPHA, REGULARIZATION = 3.0, 1e-2  # α, λ⁻²
Task = tuple[Tensor, Tensor]  # X [n, d], Y [n, m]: rows are samples
both_gradients = pytest.mark.parametrize("exact", [False, True])


def make_tasks() -> list[Task]:
    """Three tasks of different size; the second lies in a subspace, the third has few samples."""
    inputs = [normal(5, 40, 7), normal(6, 25, 2) @ normal(7, 2, 7), 2 * normal(8, 4, 7)]
    return [(X, normal(i, len(X), 2)) for i, X in enumerate(inputs)]


def moments(task: Task) -> Task:
    """R = E[x xᵀ] and K = E[y xᵀ]."""
    X, Y = task
    return X.mT @ X / len(X), Y.mT @ X / len(X)


def soft_task() -> tuple[Task, Tensor, Tensor]:
    """A second task, the weights of the first, and the soft F that the first leaves."""
    R, K = moments(make_tasks()[0])
    weights = closed_form.increment(R, K, torch.zeros_like(K), eye(7), REGULARIZATION)
    return make_tasks()[1], weights, closed_form.free_space(R, ALPHA)


def hard_free_space() -> Tensor:
    basis = torch.linalg.qr(normal(1, 7, 3)).Q
    free: Tensor = eye(7) - basis @ basis.mT
    return free


def test_increments_are_section_2_2() -> None:
    """With the report's letters and its N x n matrices."""
    W, A = torch.zeros(2, 7, dtype=torch.float64), Conceptor.zero(7)
    weights, total = W, torch.zeros(7, 7, dtype=torch.float64)
    for task in make_tasks():
        X, Y, n = task[0].mT, task[1].mT, len(task[0])
        R = X @ X.mT / n
        T, S = Y - W @ X, (~A).matrix() @ X
        W = W + (torch.linalg.inv(S @ S.mT / n + REGULARIZATION * eye(7)) @ S @ T.mT / n).mT
        A = A | Conceptor.from_matrix(R @ torch.linalg.inv(R + ALPHA**-2 * eye(7)))

        R, K = moments(task)
        free = closed_form.free_space(total, ALPHA)
        weights = weights + closed_form.increment(R, K, weights, free, REGULARIZATION)
        total = total + R
        torch.testing.assert_close(weights, W, rtol=0, atol=1e-10)
        after = closed_form.free_space(total, ALPHA)
        torch.testing.assert_close(after, (~A).matrix(), rtol=0, atol=1e-10)


def test_simplified_increments_at_equal_penalties_are_joint_ridge() -> None:
    """F (R F + λ⁻² I)⁻¹ = (R + λ⁻² F⁻¹)⁻¹, and λ⁻² F⁻¹ = ΣR + α⁻² I where λ⁻² = α⁻²."""
    weights, total = torch.zeros(2, 7, dtype=torch.float64), torch.zeros(7, 7, dtype=torch.float64)
    cross = torch.zeros_like(weights)
    for task in make_tasks() * 2:
        R, K = moments(task)
        free = closed_form.free_space(total, ALPHA)
        weights = weights + closed_form.simplified_increment(R, K, weights, free, ALPHA**-2)
        total, cross = total + R, cross + K
        joint = cross @ torch.linalg.inv(total + ALPHA**-2 * eye(7))
        torch.testing.assert_close(weights, joint, rtol=0, atol=1e-10)


def test_free_space_at_a_huge_aperture_is_the_hard_complement() -> None:
    """α² R has negative eigenvalues of rounding size, far below -1, and Cholesky fails."""
    free = hard_free_space()
    for aperture in (1e4, 1e9, 1e12):
        torch.testing.assert_close(
            closed_form.free_space(eye(7) - free, aperture), free, rtol=0, atol=1e-7
        )


@both_gradients
@pytest.mark.parametrize("hard", [False, True])
def test_the_gradient_vanishes_at_its_closed_form(exact: bool, hard: bool) -> None:
    (X, Y), previous, free = soft_task()
    free = hard_free_space() if hard else free
    solve = closed_form.increment if exact else closed_form.simplified_increment
    change = solve(*moments((X, Y)), previous, free, REGULARIZATION)
    weights = previous + change
    gradient = closed_form.gradient(X, Y, weights, previous, free, REGULARIZATION, exact=exact)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-10)
    if hard:  # then the claimed space is left alone
        assert float((change @ (eye(7) - free)).norm()) < 1e-10 < float(change.norm())


def test_the_exact_gradient_is_that_of_the_cost() -> None:
    (X, Y), previous, free = soft_task()
    change = normal(2, 2, 7).requires_grad_()
    s, t = X @ free, Y - X @ previous.mT
    cost = (s @ change.mT - t).square().sum(1).mean() + REGULARIZATION * change.square().sum()
    (expected,) = torch.autograd.grad(cost, change)
    weights = previous + change.detach()
    actual = closed_form.gradient(X, Y, weights, previous, free, REGULARIZATION, exact=True)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("hard", [False, True])
def test_the_two_gradients_differ_by_what_a_soft_free_space_claims(hard: bool) -> None:
    """Simplified - exact = 2 W_inc A R F for an increment within the free space; 0 if F is hard."""
    (X, Y), previous, free = soft_task()
    free = hard_free_space() if hard else free
    change = normal(2, 2, 7) @ free
    exact, simplified = (
        closed_form.gradient(X, Y, previous + change, previous, free, REGULARIZATION, exact=exact)
        for exact in (True, False)
    )
    difference = 2 * change @ (eye(7) - free) @ moments((X, Y))[0] @ free
    torch.testing.assert_close(simplified - exact, difference, rtol=0, atol=1e-10)
    assert (float(difference.norm()) > 1e-3) != hard
