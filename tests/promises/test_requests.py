"""What is asked for is what is done: batches, precision, threads, states, statistics."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from conceptors import Shield
from promises.common import data, drift, network, outputs, shielded, train


def test_rounding_of_half_precision_is_not_taken_for_directions() -> None:
    x = data(1, count=2000, inputs=64, rank=8).float()

    def quota(aperture: float, half: bool) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            return Shield(nn.Linear(64, 10), aperture).remember(x).quota()["Linear"]

    assert quota(3.0, True) == pytest.approx(quota(3.0, False), rel=0.02)
    assert quota(1000.0, False) == pytest.approx(9 / 65, rel=0.01)
    with pytest.raises(ValueError, match="half precision is too coarse for aperture"):
        quota(1000.0, True)


def test_a_shield_works_in_one_thread_at_a_time() -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(SGD(model.parameters(), lr=0.1))
    errors: list[str] = []

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(str(error)[:40])

    def feed(model: nn.Module, batch: Tensor) -> None:
        for work in (lambda: shield.remember(data(4)), lambda: train(model, optimizer, 1)):
            thread = threading.Thread(target=attempt, args=(work,))
            thread.start()
            thread.join()
        model(batch)

    shield.remember(data(3), feed=feed)
    assert [e.startswith("this shield is in use by another") for e in errors] == [True] * 2
    assert shield.n_tasks == 2


def test_a_failure_in_rebuilding_guards_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(AdamW(model.parameters(), lr=1e-2))
    before, quota = outputs(model), shield.quota()

    def fail(*_: Any, **__: Any) -> Any:
        monkeypatch.undo()
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(torch.linalg, "eigh", fail)
    with pytest.raises(torch.OutOfMemoryError):
        shield.remember(data(3))
    assert (shield.n_tasks, shield.quota()) == (1, quota)
    train(model, optimizer)
    assert drift(model, before) < 1e-9


@pytest.mark.parametrize("release", ["forget", "detach", "follow"])
def test_statistics_of_batchnorm_are_fixed_until_they_are_released(release: str) -> None:
    model, follows = network(), release == "follow"
    model.insert(1, nn.BatchNorm1d(64).double())

    def moves() -> bool:
        """Whether a pass in training changes the statistics."""
        before = model[1].running_mean.clone()
        model.train()(data(7) + 3)
        return not torch.equal(before, model[1].running_mean)

    shield = Shield(model, keep_tasks=True, batchnorm="follow" if follows else "freeze")
    assert moves()
    shield.remember(data(1))
    assert moves() == follows
    if release == "forget":
        shield.forget(0)
    elif release == "detach":
        shield.detach()
    assert moves()
