"""Trainers protect what they learned, resume bit for bit, and clip what the optimizer receives."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from conceptors import UnprotectedWarning
from helpers import drift
from integrations.trainers import (
    RUNS,
    Recorded,
    Transformers,
    accuracy,
    everything,
    outputs,
    same,
    task,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*num_workers"),
    pytest.mark.filterwarnings("ignore:.*(treespec|LeafSpec)"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]
HARD: dict[str, Any] = {"aperture": 1e4, "hard": True}


@pytest.fixture(params=RUNS)
def start(request: pytest.FixtureRequest) -> Any:
    """A trainer; skips without its library."""
    pytest.importorskip(request.param.needs)
    return request.param


def test_two_tasks(start: Any, tmp_path: Path) -> None:
    run = start(tmp_path, **HARD)
    run.fit(1, save_strategy="no")
    assert run.shield.n_tasks == 1
    before = outputs(run.net, 1)
    assert accuracy(run.net, 1) > 0.9
    run.fit(2, save_strategy="no")
    assert run.shield.n_tasks == 2
    assert drift(outputs(run.net, 1), before) < 1e-5
    assert accuracy(run.net, 2) > 0.8


@pytest.mark.parametrize(
    "options", [{}, HARD, {"aperture": 3.0, "increment_decay": 0.1}], ids=["auto", "hard", "decay"]
)
def test_a_resumed_run_is_the_same(start: Any, options: dict[str, Any], tmp_path: Path) -> None:
    run = start(tmp_path, **options)
    run.fit(1, 4)
    run.fit(2, 4)
    resumed = start(tmp_path / "other", **options)
    resumed.fit(2, 4, resume=run.checkpoint(2, 2))
    assert resumed.shield.n_tasks == 2
    assert same(everything(resumed.net, resumed.shield), everything(run.net, run.shield))


def test_projected_gradients_are_clipped(start: Any, tmp_path: Path) -> None:
    """Not those that old tasks would use up; and the trainer's setting is restored."""
    run = start(tmp_path, 1e-3, Recorded, **HARD)
    recorded = run.optimizer
    for number in (1, 2):
        run.fit(number, 2)
        assert recorded.norms[-12:] == pytest.approx([1e-3] * 12, rel=1e-2)
        assert run.clipping == 1e-3
    if start is Transformers:
        recorded.interrupt = True
        with pytest.raises(KeyboardInterrupt):
            run.fit(2, 1)
        recorded.interrupt = False
        run.fit(2, 1)
        assert run.clipping == 1e-3


def test_going_back_to_an_earlier_task_is_reported(start: Any, tmp_path: Path) -> None:
    run = start(tmp_path)
    run.fit(1, 2)
    with pytest.warns(UnprotectedWarning, match="had remembered 1 tasks.* contains only 0 of them"):
        run.fit(2, 3, resume=run.checkpoint(1, 1))


@pytest.mark.parametrize("start", [Transformers], indirect=True)
def test_the_best_model_is_remembered_without_a_warning(start: Any, tmp_path: Path) -> None:
    """Weights that go back within a task are no surprise."""
    run = start(tmp_path)
    run.fit(1)
    worse = {"metric_for_best_model": "loss", "greater_is_better": True}  # an early one is best
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnprotectedWarning)
        trainer = run.fit(2, 4, load_best_model_at_end=True, eval_strategy="epoch", **worse)
    assert trainer.state.best_global_step < 24
    assert run.shield.n_tasks == 2


@pytest.mark.parametrize("start", [Transformers], indirect=True)
def test_a_sample_is_remembered_once_before_the_first_step(start: Any, tmp_path: Path) -> None:
    run, resumed = start(tmp_path, **HARD), start(tmp_path / "other", **HARD)
    run.sample = resumed.sample = [task(1)[0]]
    before = outputs(run.net, 1)
    run.fit(2, 4)
    assert run.shield.n_tasks == 2
    assert drift(outputs(run.net, 1), before) < 1e-5
    resumed.fit(2, 4, resume=run.checkpoint(2, 2))
    assert same(everything(resumed.net, resumed.shield), everything(run.net, run.shield))
