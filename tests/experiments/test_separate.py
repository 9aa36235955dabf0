"""A network for each task: none of them knows of the others."""

from __future__ import annotations

import pytest
import torch

from experiments.learners import learner, narrow


def test_every_task_is_learned_as_if_it_were_the_first() -> None:
    found, alone = learner("separate", [0, 4], tasks=3), learner("separate", [0, 4], tasks=3)
    found.learn(0)
    first = found.test(1)
    found.learn(1)
    found.learn(2)
    assert torch.equal(found.test()[:, :1], first)  # nothing is forgotten
    alone.learn(2)  # which nothing came before
    assert torch.equal(found.test()[:, 2], alone.test()[:, 2])
    for ours, theirs in zip(found.model.parameters(), alone.model.parameters()):
        assert torch.equal(ours, theirs)


def test_each_task_is_tested_with_its_own_network() -> None:
    found = learner("separate", [0], tasks=2)
    right = []
    for number in range(2):
        found.learn(number)
        x, _ = found.scenario.tasks[number].test.take(torch.arange(9)[None])
        right.append((x, found.model(x).detach()))
    for number, (x, wanted) in enumerate(right):
        assert torch.equal(found.outputs(x, number), wanted)
    assert not torch.equal(found.outputs(right[0][0], 1), right[0][1])


def test_what_is_kept_are_all_networks_but_one() -> None:
    found = learner("separate", [0, 1], tasks=3)
    each = sum(p.numel() for p in found.model.parameters()) // 2
    kept = []
    for number in range(3):
        found.learn(number)
        kept.append(found.extras[0].get("stored_numbers"))
    assert kept == [0, each, 2 * each]


def test_networks_with_norms() -> None:
    found = narrow("separate", [0, 1])
    found.learn(0)
    before = found.test(1)
    found.learn(1)
    assert torch.equal(found.test()[:, :1], before)


def test_a_task_may_be_learned_again() -> None:
    found = learner("separate", [0], tasks=2)
    found.learn(1)
    last = found.test()
    found.learn(0)
    found.learn(0)
    assert found.extras[0]["stored_numbers"] == sum(p.numel() for p in found.model.parameters())
    assert torch.equal(found.test()[:, 1:], last[:, 1:])


def test_statistics_of_one_task_for_all_are_refused() -> None:
    with pytest.raises(ValueError, match="use norms=batch"):
        narrow("separate", [0], norms="first")
