"""The shield in transformers' Trainer: what it protects, and what a resumed run finds again."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from conceptors import Shield, UnprotectedWarning
from integrations.common import Net, accuracy, drift, everything, outputs, rows, same

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from conceptors.integrations.transformers import ShieldCallback  # noqa: E402


def arguments(folder: Path, steps: int = 40, **more: Any) -> Any:
    options = {
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_steps": steps,
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    return transformers.TrainingArguments(str(folder), **(options | more))


def trainer(shield: Shield, folder: Path, number: int, *others: Any, **more: Any) -> Any:
    """A Trainer of one task, with the callback."""
    return transformers.Trainer(
        shield.model,
        arguments(folder, **more),
        train_dataset=rows(number),
        eval_dataset=rows(number),
        callbacks=[ShieldCallback(shield), *others],
    )


def hard() -> Shield:
    return Shield(Net(), 1e4, hard=True)


def test_one_trainer_learns_two_tasks(tmp_path: Path) -> None:
    shield = hard()
    run = trainer(shield, tmp_path, 1)
    run.train()
    assert shield.n_tasks == 1
    before = outputs(shield.model, 1)
    assert accuracy(shield.model, 1) > 0.9
    run.train_dataset = rows(2)
    run.train()
    assert shield.n_tasks == 2
    assert drift(before, outputs(shield.model, 1)) < 1e-5
    assert accuracy(shield.model, 2) > 0.8


class Lengths(transformers.TrainerCallback):  # type: ignore[misc]
    """Of gradients as the optimizer sees them, and what Trainer was told."""

    def __init__(self, stop: bool = False) -> None:
        self.steps: list[float] = []
        self.told: list[float] = []
        self.stop = stop

    def on_train_begin(self, args: Any, *_: Any, optimizer: Any, **more: Any) -> None:
        def look(*_: Any) -> None:
            held = [p.grad for group in optimizer.optimizer.param_groups for p in group["params"]]
            self.steps.append(float(nn.utils.get_total_norm([g for g in held if g is not None])))
            if self.stop:
                raise KeyboardInterrupt

        self.told.append(args.max_grad_norm)
        self.hook = optimizer.optimizer.register_step_pre_hook(look)  # after the shield's

    def on_train_end(self, *_: Any, **more: Any) -> None:
        self.hook.remove()


def test_what_is_left_of_gradients_is_clipped(tmp_path: Path) -> None:
    shield, seen = hard(), Lengths()
    run = trainer(shield, tmp_path, 1, seen, max_grad_norm=1e-3)
    run.train()
    assert max(seen.steps) == pytest.approx(1e-3, rel=1e-2)
    run.train_dataset, seen.steps = rows(2), []
    run.train()
    assert seen.told == [1e-3, 0.0]
    assert max(seen.steps) == pytest.approx(1e-3, rel=1e-2)  # not of what is claimed
    assert run.args.max_grad_norm == 1e-3
    seen.stop = True
    with pytest.raises(KeyboardInterrupt):
        run.train()
    seen.stop = False
    run.train()
    assert seen.told == [1e-3, 0.0, 0.0, 0.0]
    assert run.args.max_grad_norm == 1e-3


# --- checkpoints -------------------------------------------------------------------------

SHIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "auto": ({}, {}),
    "hard": ({"aperture": 30.0, "hard": True}, {}),
    "decay": ({"aperture": 3.0, "increment_decay": 0.01}, {"optim": "sgd"}),
}


@pytest.mark.parametrize("kind", SHIELDS)
def test_a_resumed_run_is_the_run_that_was_not_interrupted(tmp_path: Path, kind: str) -> None:
    options, more = SHIELDS[kind]
    shield = Shield(Net(), **options)
    trainer(shield, tmp_path / "1", 1, **more).train()
    saved = {"save_strategy": "steps", "save_steps": 5, "steps": 10, **more}
    trainer(shield, tmp_path / "2", 2, **saved).train()
    wanted = everything(shield.model, shield)
    shutil.rmtree(tmp_path / "2" / "checkpoint-10")
    again = Shield(Net(), **options)  # as a new process makes it
    trainer(again, tmp_path / "2", 2, **saved).train(resume_from_checkpoint=True)
    assert again.n_tasks == 2
    assert same(everything(again.model, again), wanted)


def test_the_shield_is_found_from_another_output_directory(tmp_path: Path) -> None:
    shield = hard()
    trainer(shield, tmp_path / "1", 1).train()
    saved = {"save_strategy": "steps", "save_steps": 5, "steps": 10}
    trainer(shield, tmp_path / "2", 2, **saved).train()
    # what lies under the same name in the new directory is of another run
    trainer(Shield(Net()), tmp_path / "other", 1, **saved).train()
    again = hard()
    run = trainer(again, tmp_path / "other", 2, **saved)
    run.train(resume_from_checkpoint=str(tmp_path / "2" / "checkpoint-5"))
    assert same(everything(again.model, again), everything(shield.model, shield))


def test_going_back_to_an_earlier_task_is_said(tmp_path: Path) -> None:
    shield = hard()
    trainer(shield, tmp_path, 1, save_strategy="steps", save_steps=5, steps=10).train()
    run = trainer(shield, tmp_path, 2, steps=15)
    with pytest.warns(
        UnprotectedWarning, match="had remembered 1 tasks.* contains only 0 of them.* output_dir"
    ):
        run.train(resume_from_checkpoint=True)


def test_the_best_model_is_remembered_and_nothing_is_said(tmp_path: Path) -> None:
    """Weights that go back within a task are no surprise."""
    shield = Shield(Net())
    trainer(shield, tmp_path / "1", 1).train()
    often = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    worse = {"metric_for_best_model": "loss", "greater_is_better": True}  # an early one is best
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnprotectedWarning)
        run = trainer(
            shield, tmp_path / "2", 2, steps=10, load_best_model_at_end=True, **often, **worse
        )
        run.train()
    assert run.state.best_global_step < 10
    assert shield.n_tasks == 2
