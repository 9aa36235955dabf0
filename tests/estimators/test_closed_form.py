"""The formulas of incremental ridge regression: free space, increments, gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors.estimators import closed_form
from helpers import eye, normal

ALPHA, REGULARIZATION = 3.0, 1e-2  # α, λ⁻²
Task = tuple[Tensor, Tensor]  # X [n, d], Y [n, m]: rows are samples
both_gradients = pytest.mark.parametrize("exact", [False, True])


def moments(task: Task) -> Task:
    """R = E[x xᵀ] and K = E[y xᵀ]."""
    X, Y = task
    return X.mT @ X / len(X), Y.mT @ X / len(X)


def soft_task() -> tuple[Task, Tensor, Tensor]:
    """A second task in a subspace, the weights of the first, and the soft F that it leaves."""
    R, K = moments((normal(5, 40, 7), normal(0, 40, 2)))
    weights = closed_form.increment(R, K, torch.zeros_like(K), eye(7), REGULARIZATION)
    second = normal(6, 25, 2) @ normal(7, 2, 7), normal(1, 25, 2)
    return second, weights, closed_form.free_space(R, ALPHA)


def hard_free_space() -> Tensor:
    basis = torch.linalg.qr(normal(1, 7, 3)).Q
    free: Tensor = eye(7) - basis @ basis.mT
    return free


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
