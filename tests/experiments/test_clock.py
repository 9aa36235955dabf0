"""Time that is of training steps."""

from __future__ import annotations

import pytest
import torch

from conceptors.experiments.methods.clock import Clock


def test_what_is_before_and_between_steps_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("conceptors.experiments.methods.clock.time.perf_counter", lambda: now[0])
    found = Clock(torch.device("cpu"))
    for task in range(2):
        for step in range(1, 31):
            now[0] += 2.0 if step > 10 else 50.0
            found.go(step)
            if step in (20, 30):
                found.stop(step)
                now[0] += 1000.0
        assert found.steps == 19 * (task + 1)  # the first after a stop only starts the clock
        assert found.seconds == 38.0 * (task + 1)


def test_few_steps_are_not_timed() -> None:
    found = Clock(torch.device("cpu"))
    for step in range(1, 6):
        found.go(step)
    found.stop(5)
    assert (found.steps, found.seconds) == (0, 0.0)
