"""Any stream of learning, forgetting and adding up, against the direct solution on what is left."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import Readout
from readout.common import (
    DIM,
    around_mean,
    assert_close,
    direct,
    one_hot,
    rows_of,
    samples,
)
from helpers import normal

LAMBDA = 3e-3
NAMES = (None, "a", "b.c", "sums")

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("learn"),
            st.integers(0, 99),
            st.sampled_from([1, 2, 5, 30]),
            st.sampled_from(NAMES),
        ),
        st.tuples(st.just("forget"), st.sampled_from(NAMES[1:])),
        st.tuples(st.just("solve")),
        st.tuples(st.just("save")),
        st.tuples(st.just("part")),
    ),
    min_size=1,
    max_size=9,
)


@given(steps, st.sampled_from([0, 7]), st.sampled_from(["labels", "number", "numbers"]))
def test_every_stream_is_what_is_left_of_it(
    stream: list[tuple[object, ...]], lift: int, kind: str
) -> None:
    base = Readout(DIM, lift, regularization=LAMBDA).calibrate(samples(0)[0])
    side = [base.fresh(), base.fresh()]
    kept: dict[object, list[tuple[Tensor, Tensor]]] = {name: [] for name in NAMES}
    for step, *what in stream:
        if step == "learn":
            seed, count, name = what
            X, labels = samples(int(str(seed)), int(str(count)))
            y = labels
            if kind != "labels":
                y = normal(int(str(seed)), len(X), *([2] if kind == "numbers" else []))
            side[0].learn(X, y, None if name is None else str(name))
            kept[name].append((X, y))
        elif step == "forget":
            for readout in side:
                if what[0] in readout.tasks:
                    readout.forget(str(what[0]))
            kept[what[0]] = []
        elif step == "solve" and side[0].n_samples:
            assert 0 <= side[0].quota <= 1
        elif step == "save":
            state = side[0].state_dict()
            side[0] = Readout(DIM, lift, regularization=LAMBDA)
            side[0].load_state_dict(state)
        elif step == "part":  # go on with the other
            side.reverse()
    pairs = [pair for found in kept.values() for pair in found]
    readout = side[0] + side[1]
    assert readout.n_samples == sum(len(X) for X, _ in pairs)
    assert set(readout.tasks) == {name for name, found in kept.items() if found and name}
    if pairs:
        X, y = (torch.cat(part) for part in zip(*pairs))
        Y = one_hot(y) if kind == "labels" else y.reshape(len(X), -1)
        b = rows_of(readout, X)
        wanted = (direct if kind == "labels" else around_mean)(b, Y, LAMBDA)
        assert_close(readout.solution.weights, wanted, 1e-6)
