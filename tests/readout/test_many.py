"""Readouts added up, over processes too, and tasks taken off again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors import RandomFeatures, Readout
from readout.common import (
    DIM,
    assert_close,
    assert_same_state,
    direct,
    one_hot,
    rows_of,
    samples,
    state,
)
from helpers import normal
from processes import Pair


def first() -> Readout:
    return Readout(DIM, 12, regularization=1e-3).calibrate(samples(0)[0])


def parts(seed: int, labels: list[int]) -> tuple[Tensor, Tensor]:
    X, y = samples(seed)
    kept = torch.isin(y, torch.tensor(labels))
    return X[kept], y[kept]


def test_forgetting_is_never_having_seen() -> None:
    seen, never = first(), first()
    for name, labels in {"a": [0, 1], "b": [3], "c": [2, 0]}.items():
        seen.learn(*parts(1, labels), name).learn(*parts(2, labels), name)
        if name != "b":
            never.learn(*parts(1, labels), name).learn(*parts(2, labels), name)
    seen.predict(samples(0)[0])
    seen.forget("b")
    assert_same_state(seen.state_dict(), state(never))
    assert seen(samples(0)[0]).shape == (80, 3)  # class 3 was only there
    assert torch.equal(seen.predict(samples(0)[0]), never.predict(samples(0)[0]))


def test_forgetting_all_starts_again() -> None:
    X, y = samples(0)
    readout = first().learn(X, y, "a").forget("a")
    with pytest.raises(RuntimeError, match="nothing was learned yet"):
        readout.predict(X)
    assert readout.learn(X, normal(0, 80)).n_samples == 80


def test_a_sum_of_two_is_one_that_saw_both() -> None:
    one, two, both = first(), first(), first()
    one.learn(*parts(1, [0, 2])).learn(*parts(2, [1]), "shared")
    two.learn(*parts(3, [3, 1])).learn(*parts(4, [0]), "shared").learn(*parts(5, [2]), "own")
    before = state(one), state(two)
    for data in (parts(1, [0, 2]), parts(3, [3, 1])):
        both.learn(*data)
    both.learn(*parts(2, [1]), "shared").learn(*parts(4, [0]), "shared")
    both.learn(*parts(5, [2]), "own")
    for made in (one + two, two + one):
        assert_close(made.solution.weights, both.solution.weights)
        assert torch.equal(made.counts, both.counts)
        assert sorted(made.tasks) == ["own", "shared"]
        made.forget("shared")
        assert made.tasks == ["own"]
    assert_same_state(one.state_dict(), before[0])
    assert_same_state(two.state_dict(), before[1])


def test_one_that_has_learned_nothing_adds_nothing() -> None:
    X, y = samples(0)
    learned = Readout(DIM, 12).learn(X, y)
    for made in (learned + Readout(DIM, 12), Readout(DIM, 12) + learned, learned + learned.fresh()):
        assert_same_state(made.state_dict(), state(learned))
    empty = Readout(DIM) + Readout(DIM)
    assert empty.n_samples == 0


def test_what_does_not_add_up_is_refused() -> None:
    X, y = samples(0)
    one = Readout(DIM, 12).learn(X, y)
    others = [
        Readout(DIM, 12).learn(2 * X, y),
        Readout(DIM, 12, seed=1).learn(X, y),
        Readout(DIM, 12, activation="tanh").learn(X, y),
        Readout(DIM, RandomFeatures(DIM, 12, shape=0.0)).learn(X, y),
        Readout(DIM).learn(X, y),
        Readout(DIM, 13),
    ]
    for other in others:
        with pytest.raises(ValueError, match=r"different lifts.*readout\.fresh\(\)"):
            one + other
    with pytest.raises(ValueError, match="different lifts"):
        Readout(DIM) + Readout(DIM + 1)
    with pytest.raises(ValueError, match="these have learned labels and numbers"):
        one + one.fresh().learn(X, one_hot(y))
    with pytest.raises(ValueError, match="weighting differs: samples and tasks"):
        Readout(DIM) + Readout(DIM, weighting="tasks")
    with pytest.raises(TypeError):
        one + 1  # type: ignore[operator]


def test_classes_of_a_sum_have_room() -> None:
    X, y = samples(0)
    few, many = Readout(DIM, classes=2), Readout(DIM, classes=4)
    made = few + many.learn(X, y)
    assert made.learn(X, y).counts.sum() == 160
    with pytest.raises(ValueError, match="from 0 to 3"):
        made.learn(X, y + 4)


def test_tasks_may_count_equally() -> None:
    X, y = samples(0)
    readout = Readout(DIM, weighting="tasks", regularization=1e-2)
    readout.learn(X[:60], y[:60], "large").learn(X[60:65], y[60:65], "small")
    readout.learn(X[65:75], y[65:75], "small")
    b = rows_of(readout, X[:75])
    weights = torch.cat([torch.full((60,), 1 / 60), torch.full((15,), 1 / 15)]).double()
    assert_close(readout.solution.weights, direct(b, one_hot(y[:75], 4), 1e-2, weights))
    assert torch.equal(readout.counts, y[:75].bincount(minlength=4))
    again = readout + readout.fresh()
    assert_close(again.solution.weights, readout.solution.weights)


def test_a_fresh_one_is_where_the_old_one_is() -> None:
    moved = first().to("meta").fresh()
    assert {buffer.device.type for buffer in moved.buffers()} == {"meta"}


# --- processes ------------------------------------------------------------------------------------


def two_shards(rank: int) -> tuple[Tensor, Tensor, list[str], int]:
    """Different classes on each, and tasks that only one of them has."""
    readout = first().learn(*parts(1, [0, 1] if rank else [2]))
    readout.learn(*parts(2, [rank]), "both")
    if rank:
        readout.learn(*parts(3, [3]), "second")
    before = state(readout)
    made = readout.merged()
    assert_same_state(readout.state_dict(), before)
    return made.solution.weights, made.counts, made.tasks, made.n_samples


def one_is_empty(rank: int) -> tuple[Tensor, Tensor]:
    """The empty one has not even seen data that could fix its lift."""
    readout = Readout(DIM, 12)
    if rank:
        readout.learn(*samples(0))
    made = readout.merged()
    return made.predict(samples(0)[0]), made.lift(samples(0)[0])


def all_are_empty(rank: int) -> int:
    return Readout(DIM, 12).merged().n_samples


def unlike(rank: int) -> list[str]:
    """Every process hears of it, and none waits for the others."""
    X, y = samples(rank)
    found = []
    pairs = [
        Readout(DIM, 12).learn(X, y),
        first().learn(X, y) if rank else first().learn(X, one_hot(y)),
        Readout(DIM, weighting="tasks" if rank else "samples"),
    ]
    for readout in pairs:
        with pytest.raises(ValueError, match=r"different|learned|weighting") as caught:
            readout.merged()
        found.append(str(caught.value))
    return found


def test_processes_add_up(pair: Pair) -> None:
    whole = first().learn(*parts(1, [2])).learn(*parts(1, [0, 1]))
    for label in (0, 1):
        whole.learn(*parts(2, [label]), "both")
    whole.learn(*parts(3, [3]), "second")
    for weights, counts, tasks, count in pair(two_shards):
        assert_close(weights, whole.solution.weights)
        assert torch.equal(counts, whole.counts)
        assert tasks == ["both", "second"]
        assert count == whole.n_samples


def test_a_process_may_have_learned_nothing(pair: Pair) -> None:
    X, y = samples(0)
    alone = Readout(DIM, 12).learn(X, y)
    for predicted, lifted in pair(one_is_empty):
        assert torch.equal(predicted, alone.predict(X))
        assert torch.equal(lifted, alone.lift(X))
    assert pair(all_are_empty) == [0, 0]


def test_unlike_processes_are_told(pair: Pair) -> None:
    here, there = pair(unlike)
    assert here == there
    assert "fresh()" in here[0]
