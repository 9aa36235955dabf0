"""Incremental ridge regression against section 2.2 of the report, written out step by step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from conceptors.estimators import closed_form

ALPHA, REGULARIZATION = 3.0, 1e-2  # α, λ⁻²
Task = tuple[Tensor, Tensor]  # X [n, d], Y [n, m]: rows are samples


def make_tasks(*, bias: bool, dim: int = 6, outputs: int = 2) -> list[Task]:
    """Three tasks of different size; the second lies in a subspace, the third has few samples."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = [normal(40, dim), normal(25, 2) @ normal(2, dim), 2 * normal(4, dim)]
    if bias:
        inputs = [torch.cat([X, torch.ones(len(X), 1, dtype=X.dtype)], 1) for X in inputs]
    return [(X, normal(len(X), outputs)) for X in inputs]


def report(tasks: list[Task]) -> list[tuple[Tensor, Conceptor]]:
    """W^j and A^j of every task j, with the report's letters and its N x n matrices."""
    N, M = tasks[0][0].shape[1], tasks[0][1].shape[1]
    eye = torch.eye(N, dtype=torch.float64)
    W, A = torch.zeros(M, N, dtype=torch.float64), Conceptor.zero(N)
    found = []
    for rows, targets in tasks:
        X, Y, n = rows.mT, targets.mT, len(rows)
        R = X @ X.mT / n
        C = Conceptor.from_matrix(R @ torch.linalg.inv(R + ALPHA**-2 * eye))
        F = (~A).matrix()
        T = Y - W @ X
        S = F @ X
        W = W + (torch.linalg.inv(S @ S.mT / n + REGULARIZATION * eye) @ S @ T.mT / n).mT
        A = A | C
        found.append((W, A))
    return found


def moments(task: Task) -> Task:
    """R = E[x xᵀ] and K = E[y xᵀ]."""
    X, Y = task
    return X.mT @ X / len(X), Y.mT @ X / len(X)


def soft_task() -> tuple[Task, Tensor, Tensor]:
    """A second task, the weights of the first, and the soft F that the first leaves."""
    first, second, _ = make_tasks(bias=True)
    R, K = moments(first)
    start = torch.zeros_like(K)
    eye = torch.eye(len(R), dtype=R.dtype)
    weights = closed_form.increment(R, K, start, eye, REGULARIZATION)
    return second, weights, closed_form.free_space(R, ALPHA)


def hard_free_space(dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(dim, 3, generator=generator, dtype=torch.float64)).Q
    free: Tensor = torch.eye(dim, dtype=torch.float64) - basis @ basis.mT
    return free


@pytest.mark.parametrize("bias", [False, True])
def test_increment_is_section_2_2(bias: bool) -> None:
    tasks = make_tasks(bias=bias)
    R, K = moments(tasks[0])
    weights, total = torch.zeros_like(K), torch.zeros_like(R)
    for task, (wanted, claimed) in zip(tasks, report(tasks)):
        R, K = moments(task)
        free = closed_form.free_space(total, ALPHA)
        weights = weights + closed_form.increment(R, K, weights, free, REGULARIZATION)
        total = total + R
        torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-10)
        after = closed_form.free_space(total, ALPHA)
        torch.testing.assert_close(after, (~claimed).matrix(), rtol=0, atol=1e-10)


def test_free_space_of_nothing_is_everything() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(closed_form.free_space(0 * eye, 7.0), eye)


def test_free_space_at_a_huge_aperture_is_the_hard_complement() -> None:
    """α² R has negative eigenvalues of rounding size, far below -1, and Cholesky fails."""
    free = hard_free_space(6)
    occupied = torch.eye(6, dtype=torch.float64) - free
    for aperture in (1e4, 1e9, 1e12):
        torch.testing.assert_close(
            closed_form.free_space(occupied, aperture), free, rtol=0, atol=1e-7
        )


def test_increment_refuses_a_regularization_below_rounding() -> None:
    R = torch.ones(3, 3, dtype=torch.float64)
    K, eye = torch.ones(1, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"regularization 1e-30 is too small .* raise it"):
        closed_form.increment(R, K, torch.zeros_like(K), eye, 1e-30)


@pytest.mark.parametrize("bias", [False, True])
def test_simplified_increment_at_equal_penalties_is_joint_ridge(bias: bool) -> None:
    """F (R F + λ⁻² I)⁻¹ = (R + λ⁻² F⁻¹)⁻¹, and λ⁻² F⁻¹ = ΣR + α⁻² I where λ⁻² = α⁻²."""
    R, K = moments(make_tasks(bias=bias)[0])
    eye = torch.eye(len(R), dtype=R.dtype)
    weights, total, cross = torch.zeros_like(K), torch.zeros_like(R), torch.zeros_like(K)
    for task in make_tasks(bias=bias) * 2:
        R, K = moments(task)
        free = closed_form.free_space(total, ALPHA)
        weights = weights + closed_form.simplified_increment(R, K, weights, free, ALPHA**-2)
        total, cross = total + R, cross + K
        joint = cross @ torch.linalg.inv(total + ALPHA**-2 * eye)
        torch.testing.assert_close(weights, joint, rtol=0, atol=1e-10)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_the_gradient_vanishes_at_its_closed_form(exact: bool, hard: bool) -> None:
    (X, Y), previous, free = soft_task()
    if hard:
        free = hard_free_space(len(free))
    solve = closed_form.increment if exact else closed_form.simplified_increment
    change = solve(*moments((X, Y)), previous, free, REGULARIZATION)
    found = closed_form.gradient(
        X, Y, previous + change, previous, free, REGULARIZATION, exact=exact
    )
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-10)


def test_the_exact_gradient_is_that_of_the_cost() -> None:
    (X, Y), previous, free = soft_task()
    change = some_increment().requires_grad_()
    s, t = X @ free, Y - X @ previous.mT
    cost = (s @ change.mT - t).square().sum(1).mean() + REGULARIZATION * change.square().sum()
    (wanted,) = torch.autograd.grad(cost, change)
    weights = previous + change.detach()
    found = closed_form.gradient(X, Y, weights, previous, free, REGULARIZATION, exact=True)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def some_increment() -> Tensor:
    return torch.randn(2, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def both_gradients(change: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    (X, Y), previous, _ = soft_task()
    exact, simplified = (
        closed_form.gradient(X, Y, previous + change, previous, free, REGULARIZATION, exact=exact)
        for exact in (True, False)
    )
    return exact, simplified


def test_soft_free_space_parts_the_two_gradients() -> None:
    """Simplified - exact = 2 W_inc A R F, also for an increment within the free space."""
    task, _, free = soft_task()
    R, _ = moments(task)
    claimed = torch.eye(len(free), dtype=free.dtype) - free
    change = some_increment() @ free
    exact, simplified = both_gradients(change, free)
    torch.testing.assert_close(simplified - exact, 2 * change @ claimed @ R @ free)
    assert float((simplified - exact).norm() / exact.norm()) > 0.01


def test_hard_free_space_unites_the_two_gradients_and_solutions() -> None:
    (X, Y), previous, soft = soft_task()
    free = hard_free_space(len(soft))
    exact, simplified = both_gradients(some_increment() @ free, free)
    torch.testing.assert_close(simplified, exact, rtol=0, atol=1e-10)
    solved = (*moments((X, Y)), previous, free, REGULARIZATION)
    torch.testing.assert_close(
        closed_form.simplified_increment(*solved),
        closed_form.increment(*solved),
        rtol=0,
        atol=1e-10,
    )


def test_an_increment_leaves_a_hard_claimed_space_alone() -> None:
    (X, Y), previous, soft = soft_task()
    free = hard_free_space(len(soft))
    change = closed_form.increment(*moments((X, Y)), previous, free, REGULARIZATION)
    claimed = torch.eye(len(free), dtype=free.dtype) - free
    assert float((change @ claimed).norm()) < 1e-10 < float(change.norm())
