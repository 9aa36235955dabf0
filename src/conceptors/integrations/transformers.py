"""The shield as a callback of transformers' Trainer, and samples that a model writes itself."""

import uuid
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conceptors._internal import checks
from conceptors._internal.batches import Feed, undisturbed, with_progress
from conceptors.shield import Shield
from conceptors.shield.health import warn_of_lost_tasks
from conceptors.shield.state import write_file

with checks.needs("transformers", "ShieldCallback needs transformers"):
    from transformers import TrainerCallback, TrainerState, TrainingArguments
    from transformers.trainer import TRAINER_STATE_NAME

FILE = "shield.safetensors"
_ENTRY = "conceptors"  # the key of our entry in TrainerState.stateful_callbacks
_LONGEST = 1024  # tokens of a text in a sample
_BATCH = 8  # texts of a sample in one batch


class ShieldCallback(TrainerCallback):  # type: ignore[misc]
    """Treat every call of `train` as one task: guard the optimizer, then remember the task.

    Every checkpoint contains the shield as `shield.safetensors`. After the task is remembered, the
    shield is saved in the output directory as well. `train(resume_from_checkpoint=...)` loads the
    shield from that checkpoint. Use a separate output directory for each task, or a task overwrites
    the checkpoints of the previous one.

    Once something is remembered, `max_grad_norm` limits the projected gradients. Otherwise the
    protected components, which are not applied, would use up the limit. Meanwhile the training
    arguments contain 0, and `grad_norm`, if Trainer logs it, is the norm before the projection.
    With fp16 or sharded weights, Trainer clips the gradients before they are projected.

    Args:
        shield: the shield of the trained model.
        feed, limit: passed to `Shield.remember`. By default, the model is called with a batch as
            keyword arguments.
        sample: what the pretrained model should keep, as batches or as a list of texts for
            Trainer's tokenizer. A shield without tasks remembers it before the first step; a
            resumed one already has. Default: nothing.
    """

    def __init__(
        self,
        shield: Shield,
        *,
        feed: Feed | None = None,
        limit: int | None = None,
        sample: Any = None,
    ) -> None:
        if not isinstance(shield, Shield):
            raise TypeError(
                f"ShieldCallback needs a Shield, got {type(shield).__name__}; pass Shield(model)"
            )
        self.shield = shield
        self.sample = sample
        self.feed = feed
        self.limit = limit
        # arguments whose max_grad_norm is 0 meanwhile, and its value
        self._clipping: tuple[TrainingArguments, float] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Guard the optimizer; load the shield of a resumed checkpoint, or remember the sample."""
        entry = state.stateful_callbacks.get(_ENTRY)
        clips = self._clips(args)
        self.shield.guard(kwargs["optimizer"])
        if entry:
            self._load(resumed_folder(args, state, entry))
        elif self.sample is not None and not self.shield.n_tasks:
            batches = tokenized(self.sample, kwargs.get("processing_class"))
            self.shield.remember(batches, feed=self.feed)
        if clips and self.shield.n_tasks:
            self._clipping = args, args.max_grad_norm
            args.max_grad_norm = 0.0
        folder = str(Path(args.output_dir).absolute())
        state.stateful_callbacks[_ENTRY] = {"run": uuid.uuid4().hex, "folder": folder}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        """Save the shield in the checkpoint's folder."""
        self._save(args, Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Remember the task, and save the shield in the output directory."""
        if args.load_best_model_at_end and state.best_model_checkpoint:
            best = Path(state.best_model_checkpoint) / FILE
            if best.is_file():  # the weights are those of that checkpoint now
                self.shield.load(best)
        self._restore_clipping()
        self.shield.remember(kwargs["train_dataloader"], feed=self.feed, limit=self.limit)
        self._save(args, Path(args.output_dir))

    def _clips(self, args: TrainingArguments) -> bool:
        """Whether this callback can clip gradients after the projection, instead of Trainer."""
        self._restore_clipping()  # after an interrupted run
        clips_first = any(getattr(args, name, None) for name in ("fp16", "fsdp", "deepspeed"))
        return bool(args.max_grad_norm) and not clips_first

    def on_pre_optimizer_step(self, *_: Any, optimizer: Any, **__: Any) -> None:
        """Clip the projected gradients."""
        if self._clipping is not None:
            self.shield.project_(optimizer)
            nn.utils.clip_grad_norm_(self.shield.model.parameters(), self._clipping[1])

    def _restore_clipping(self) -> None:
        if self._clipping is not None:
            args, limit = self._clipping
            args.max_grad_norm, self._clipping = limit, None

    def _save(self, args: TrainingArguments, folder: Path) -> None:
        state = self.shield.state_dict()  # on all processes, to gather sharded weights
        if args.should_save:
            write_file(state, folder / FILE)

    def _load(self, folder: Path) -> None:
        before = self.shield.n_tasks
        self.shield.load(folder / FILE)
        advice = (
            "Use a separate output_dir for each task, and resume from a checkpoint of this task"
        )
        warn_of_lost_tasks(before, self.shield.n_tasks, advice)


def tokenized(sample: Any, tokenizer: Any) -> Any:
    """Return batches of a list of texts; other samples as they are."""
    if not isinstance(sample, list) or not all(isinstance(text, str) for text in sample):
        return sample
    if tokenizer is None:
        raise ValueError(
            "the sample is a list of texts, but Trainer has no tokenizer for them. Create it with "
            "Trainer(processing_class=tokenizer), or pass tokenized batches as the sample"
        )
    texts, size = sorted(sample, key=len), _BATCH if tokenizer.pad_token else 1
    longest = min(tokenizer.model_max_length, _LONGEST)
    options = {"padding": size > 1, "truncation": True, "max_length": longest}
    starts = range(0, len(texts), size)
    return [tokenizer(texts[i : i + size], return_tensors="pt", **options) for i in starts]


def generate_sample(
    model: Any,
    tokenizer: Any,
    n: int,
    *,
    length: int = 128,
    batch: int = 16,
    seed: int = 0,
    progress: bool = False,
) -> list[dict[str, Tensor]]:
    """Draw texts from a causal language model, for `Shield.remember` when no sample is at hand.

    Tokens are drawn from the model's distribution (temperature 1). Each text starts with the
    beginning-of-text token, or else with the end-of-text token. Training flags and random state
    do not change.

    Args:
        n: the number of texts.
        length: the largest number of tokens per text.
        batch: the number of texts that are drawn together.
        seed: the seed of the drawing.
        progress: whether to show a progress bar. Default: `False`.

    Returns:
        Batches of `input_ids` and `attention_mask`, `[batch, <= length]` each.

    Raises:
        TypeError: the model cannot generate texts from their beginning.
        ValueError: the tokenizer has no token that begins a text.
    """
    n, batch = checks.whole(n, "n", 1), checks.whole(batch, "batch", 1)
    length = checks.whole(length, "length", 2)
    if not hasattr(model, "generate") or model.config.is_encoder_decoder:
        raise TypeError(
            f"generate_sample needs a causal language model with a method generate, got "
            f"{type(model).__name__}. Pass the model without wrappers, or remember real data"
        )
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    start, end = end if start is None else start, start if end is None else end
    if start is None:
        raise ValueError(
            "the tokenizer has neither a beginning-of-text nor an end-of-text token, so texts "
            "cannot be started. Set tokenizer.bos_token"
        )
    options: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    options |= {"repetition_penalty": 1.0, "max_new_tokens": length - 1, "use_cache": True}
    options |= {"eos_token_id": end, "pad_token_id": end}
    counts = [min(batch, n - i) for i in range(0, n, batch)]
    batches = []
    with undisturbed(model):
        torch.manual_seed(seed)
        for count in with_progress(counts, progress, "generate_sample"):
            first = torch.full((count, 1), start, device=model.device)
            mask = first.new_ones(count, 1)
            ids = model.generate(input_ids=first, attention_mask=mask, **options)
            ended = (ids[:, 1:-1] == end).cumsum(1) > 0  # at an earlier token
            mask = torch.cat([first.new_ones(count, 2), (~ended).long()], 1)
            batches.append({"input_ids": ids, "attention_mask": mask})
    return batches


def resumed_folder(args: TrainingArguments, state: TrainerState, entry: dict[str, str]) -> Path:
    """Find the checkpoint that a training state was read from; Trainer does not pass its path.

    Raises:
        FileNotFoundError: the checkpoint was moved to an unknown folder.
    """
    name = f"checkpoint-{state.global_step}"
    places = [Path(args.output_dir) / name, Path(entry["folder"]) / name]
    if isinstance(args.resume_from_checkpoint, str):
        places.insert(0, Path(args.resume_from_checkpoint))
    for folder in places:
        if (folder / FILE).is_file() and (folder / TRAINER_STATE_NAME).is_file():
            saved = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
            found = saved.stateful_callbacks.get(_ENTRY), saved.global_step
            if found == (entry, state.global_step):
                return folder
    raise FileNotFoundError(
        f"the checkpoint at step {state.global_step} was saved with a shield, but its {FILE} is in "
        f"none of {', '.join(dict.fromkeys(map(str, places)))}. Without it, remembered tasks are "
        f"not protected. Set TrainingArguments(resume_from_checkpoint=folder) to the folder of the "
        f"checkpoint"
    )
