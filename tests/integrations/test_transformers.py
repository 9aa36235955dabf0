"""The shield in transformers' Trainer: what it protects, and what a resumed run finds again."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning
from integrations.common import Net, accuracy, drift, everything, near, outputs, rows, same

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from conceptors.integrations.transformers import FILE, ShieldCallback  # noqa: E402


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


def hard(aperture: float = 1e4) -> Shield:
    return Shield(Net(), aperture, hard=True)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
def test_one_trainer_learns_two_tasks(tmp_path: Path, bf16: bool) -> None:
    shield = hard(30.0 if bf16 else 1e4)
    run = trainer(shield, tmp_path, 1, bf16=bf16)
    run.train()
    assert shield.n_tasks == 1
    before = outputs(shield.model, 1)
    assert accuracy(shield.model, 1) > 0.9
    run.train_dataset = rows(2)
    run.train()
    assert shield.n_tasks == 2
    assert drift(before, outputs(shield.model, 1)) < (1e-2 if bf16 else 1e-5)
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


@pytest.mark.filterwarnings("error:all gradients together")
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


def test_without_the_callback_the_first_task_is_lost(tmp_path: Path) -> None:
    model = Net()
    run = transformers.Trainer(model, arguments(tmp_path), train_dataset=rows(1))
    run.train()
    before = outputs(model, 1)
    run.train_dataset = rows(2)
    run.train()
    assert drift(before, outputs(model, 1)) > 0.3


def test_accumulated_gradients_are_those_of_large_batches(tmp_path: Path) -> None:
    found = []
    for size, steps in ((8, 1), (4, 2)):
        shield = Shield(Net())
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
        for number in (1, 2):
            trainer(shield, tmp_path, number, steps=12, optim="sgd", **options).train()
        found.append(everything(shield.model, shield))
    assert near(found[0], found[1], 1e-4)


# --- checkpoints -------------------------------------------------------------------------

SHIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "auto": ({}, {}),
    "hard": ({"aperture": 30.0, "hard": True}, {}),
    "decay": ({"aperture": 3.0, "increment_decay": 0.01}, {"optim": "sgd"}),
    "inputs": (
        {"aperture": 3.0, "project": "inputs"},
        {"optim": "sgd", "optim_args": "momentum=0.9"},
    ),
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


def test_a_finished_run_is_resumed_without_a_further_step(tmp_path: Path) -> None:
    """So that a script which is started again may go through its tasks from the first."""
    shield = Shield(Net())
    saved = {"save_strategy": "steps", "save_steps": 9, "steps": 18}  # three epochs
    trainer(shield, tmp_path, 1, **saved).train()
    again = Shield(Net())
    trainer(again, tmp_path, 1, **saved).train(resume_from_checkpoint=True)
    assert again.n_tasks == 1
    assert near(everything(again.model, again), everything(shield.model, shield), 1e-12)


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


def test_a_checkpoint_that_was_moved_has_to_be_named(tmp_path: Path) -> None:
    shield = hard()
    saved = {"save_strategy": "steps", "save_steps": 5, "steps": 10}
    trainer(shield, tmp_path / "here", 1, **saved).train()
    (tmp_path / "here").rename(tmp_path / "there")
    there = str(tmp_path / "there" / "checkpoint-5")
    again = hard()
    with pytest.raises(FileNotFoundError, match=r"step 5 .*set TrainingArguments\(resume_from"):
        trainer(again, tmp_path / "new", 1, **saved).train(resume_from_checkpoint=there)
    run = trainer(again, tmp_path / "new", 1, resume_from_checkpoint=there, **saved)
    run.train(resume_from_checkpoint=there)
    assert same(everything(again.model, again), everything(shield.model, shield))


def test_going_back_to_an_earlier_task_is_said(tmp_path: Path) -> None:
    shield = hard()
    trainer(shield, tmp_path, 1, save_strategy="steps", save_steps=5, steps=10).train()
    run = trainer(shield, tmp_path, 2, steps=15)
    with pytest.warns(
        UnprotectedWarning, match="had remembered 1 tasks.* knows 0 of them.* output_dir"
    ):
        run.train(resume_from_checkpoint=True)


def test_a_finished_task_is_saved_in_the_output_directory(tmp_path: Path) -> None:
    shield = hard()
    run = trainer(shield, tmp_path, 1)
    run.train()
    run.save_model()
    again = hard()
    again.model.load_state_dict(shield.model.state_dict())
    again.load(tmp_path / FILE)
    assert again.n_tasks == 1
    assert same(everything(again.model, again), everything(shield.model, shield))


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


# --- a model of the library --------------------------------------------------------------


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
    )
    found: nn.Module = transformers.BertForSequenceClassification(config)
    return found


def words(number: int) -> list[dict[str, Tensor]]:
    """Six of ten words that are the task's own; the label is whether the first is an even one."""
    generator = torch.Generator().manual_seed(number)
    found = torch.randint(10 * number, 10 * number + 10, (48, 6), generator=generator)
    return [{"input_ids": ids, "labels": ids[0] % 2} for ids in found]


def test_bert_keeps_its_first_task(tmp_path: Path) -> None:
    model = bert()
    shield = Shield(model, aperture=1e3, hard=True, rank=0.5)
    ids = torch.stack([row["input_ids"] for row in words(1)])
    before = torch.empty(0)
    for number in (1, 2):
        run = transformers.Trainer(
            model,
            arguments(tmp_path / str(number), steps=12),
            train_dataset=words(number),
            callbacks=[ShieldCallback(shield, limit=40)],
        )
        run.train()
        with torch.no_grad():
            now = model.eval()(input_ids=ids).logits
        before = now if number == 1 else before
    assert shield.n_tasks == 2
    assert drift(before, now) < 0.05


def test_another_model_is_refused(tmp_path: Path) -> None:
    run = transformers.Trainer(
        Net(), arguments(tmp_path), train_dataset=rows(1), callbacks=[ShieldCallback(hard())]
    )
    with pytest.raises(ValueError, match="parameters that are not the shielded model's"):
        run.train()
