"""The shield as a callback of transformers' Trainer."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from torch import nn

from conceptors._internal.batches import Feed
from conceptors.shield import Shield
from conceptors.shield.state import save
from conceptors.shield.watch import warn_of_lost_tasks

try:
    from transformers import TrainerCallback, TrainerState, TrainingArguments
except ImportError:
    raise ImportError(
        "ShieldCallback needs transformers: pip install 'conceptors[transformers]'"
    ) from None

FILE = "shield.safetensors"
_TRAINER_STATE = "trainer_state.json"
_NOTE = "conceptors"  # our entry among the states of callbacks, which every checkpoint holds


class ShieldCallback(TrainerCallback):  # type: ignore[misc]
    """Every call of `train` is one task: guarded from its first step, remembered after its last.

    The shield is saved as `shield.safetensors` in every checkpoint, as it was there, and with the
    task remembered in the output directory. `train(resume_from_checkpoint=...)` loads it from the
    checkpoint that is resumed. Give every task an output directory of its own, or checkpoints of
    the second overwrite those of the first.

    From the second task on, `max_grad_norm` limits the projected gradients, because the directions
    that old tasks claim would use it up. The arguments hold 0 meanwhile, and Trainer logs no
    `grad_norm`. With fp16 or sharded weights Trainer clips the gradients before they are projected.

    Args:
        shield: of the model that is trained.
        feed, limit: of `Shield.remember`; by default batches are passed as keyword arguments.
    """

    def __init__(
        self, shield: Shield, *, feed: Feed | None = None, limit: int | None = None
    ) -> None:
        self.shield = shield
        self.feed = feed
        self.limit = limit
        self._lent: tuple[TrainingArguments, float] | None = None  # whose max_grad_norm is 0 now

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: Any,
        *,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Guard the optimizer; load the shield when a checkpoint is resumed."""
        note = state.stateful_callbacks.get(_NOTE)
        clips = self._clips(args)
        self.shield.guard(optimizer, between=self._clip if clips else None)
        if note:
            self._load(resumed_folder(args, state, note))
        if clips and self.shield.n_tasks:
            self._lent = args, args.max_grad_norm
            args.max_grad_norm = 0.0
        state.stateful_callbacks[_NOTE] = {
            "run": uuid.uuid4().hex,
            "folder": str(Path(args.output_dir).absolute()),
        }

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        """Put the shield beside the checkpoint."""
        self._save(args, Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: Any,
        *,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Remember the task, and save the shield in the output directory."""
        if args.load_best_model_at_end and state.best_model_checkpoint:
            best = Path(state.best_model_checkpoint) / FILE
            if best.is_file():  # the weights are of that step now; what it noted of them fits
                self.shield.load(best)
        self._give_back()
        self.shield.remember(train_dataloader, feed=self.feed, limit=self.limit)
        self._save(args, Path(args.output_dir))

    def _clips(self, args: TrainingArguments) -> bool:
        """Whether gradients can be clipped after they are projected, in Trainer's place."""
        self._give_back()  # of a run that was interrupted
        others = any(getattr(args, name, None) for name in ("fp16", "fsdp", "deepspeed"))
        return bool(args.max_grad_norm) and not others

    def _clip(self) -> None:
        if self._lent is not None:
            nn.utils.clip_grad_norm_(self.shield.model.parameters(), self._lent[1])

    def _give_back(self) -> None:
        if self._lent is not None:
            args, longest = self._lent
            args.max_grad_norm, self._lent = longest, None

    def _save(self, args: TrainingArguments, folder: Path) -> None:
        state = self.shield.state_dict()  # by all processes: sharded weights are gathered
        if args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            save(state, folder / FILE)

    def _load(self, folder: Path) -> None:
        before = self.shield.n_tasks
        self.shield.load(folder / FILE)
        warn_of_lost_tasks(
            self.shield,
            before,
            "Give every task an output_dir of its own, and resume from a checkpoint of this task",
        )


def resumed_folder(args: TrainingArguments, state: TrainerState, note: dict[str, str]) -> Path:
    """The checkpoint that a training state was read from, which Trainer tells no callback.

    Raises:
        FileNotFoundError: it was moved to where it cannot be known.
    """
    name = f"checkpoint-{state.global_step}"
    places = [Path(args.output_dir) / name, Path(note["folder"]) / name]
    if isinstance(args.resume_from_checkpoint, str):
        places.insert(0, Path(args.resume_from_checkpoint))
    for folder in places:
        if (folder / FILE).is_file() and _run_of(folder) == (note["run"], state.global_step):
            return folder
    raise FileNotFoundError(
        f"the checkpoint at step {state.global_step} was saved with a shield, and its {FILE} is in "
        f"none of {', '.join(dict.fromkeys(map(str, places)))}; set "
        f"TrainingArguments(resume_from_checkpoint=folder) to where the checkpoint is now"
    )


def _run_of(folder: Path) -> tuple[str, int] | None:
    """Which run of training a checkpoint is of, and its step."""
    try:
        found = json.loads((folder / _TRAINER_STATE).read_text(encoding="utf-8"))
        return found["stateful_callbacks"][_NOTE]["run"], found["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
