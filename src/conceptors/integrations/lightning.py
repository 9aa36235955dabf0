"""The shield as a callback of Lightning's Trainer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from conceptors._internal.batches import Feed
from conceptors.shield import Shield
from conceptors.shield.watch import warn_of_lost_tasks

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
except ImportError:
    raise ImportError(
        "ShieldCallback needs lightning: pip install 'conceptors[lightning]'"
    ) from None


class ShieldCallback(Callback):  # type: ignore[misc]
    """Every call of `fit` is one task: guarded from its first step, remembered after its last.

    The shield's state is part of every checkpoint, and `fit(..., ckpt_path=...)` restores it.

    From the second task on, Trainer's `gradient_clip_val` limits the projected gradients, because
    the directions that old tasks claim would use it up. This does not apply to clipping by value,
    scaled gradients (16-mixed), and a module's own `configure_gradient_clipping`.

    Args:
        shield: of the LightningModule, or of a part of it.
        feed, limit: of `Shield.remember`; by default the shielded module gets the first part of a
            batch.
    """

    def __init__(
        self, shield: Shield, *, feed: Feed | None = None, limit: int | None = None
    ) -> None:
        self.shield = shield
        self.feed = feed
        self.limit = limit
        self._fitting = False
        self._lent: tuple[Trainer, float] | None = None  # whose gradient_clip_val is None now

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Know what a checkpoint is loaded for."""
        self._fitting = stage == "fit"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Guard all optimizers; before, there are none."""
        clips = self._clips(trainer, pl_module)
        for optimizer in trainer.optimizers:
            self.shield.guard(optimizer, between=partial(self._clip, optimizer) if clips else None)
        if clips and self.shield.n_tasks:
            self._lent = trainer, trainer.gradient_clip_val
            trainer.gradient_clip_val = None

    def _clips(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        """Whether gradients can be clipped after they are projected, in Trainer's place."""
        own = "configure_gradient_clipping"
        return (
            bool(trainer.gradient_clip_val)
            and trainer.gradient_clip_algorithm in (None, "norm")
            and str(trainer.precision) != "16-mixed"
            and getattr(type(pl_module), own) is getattr(LightningModule, own)
            and not isinstance(trainer.strategy, (FSDPStrategy, DeepSpeedStrategy))
        )

    def _clip(self, optimizer: Any) -> None:
        if self._lent is not None:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(held, self._lent[1])

    def _give_back(self) -> None:
        if self._lent is not None:
            trainer, longest = self._lent
            trainer.gradient_clip_val, self._lent = longest, None

    def on_exception(self, *_: Any) -> None:
        """Leave Trainer as it was."""
        self._give_back()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the task: after the last checkpoint, so that one resumed does it again."""
        self._give_back()
        loader, strategy = trainer.train_dataloader, trainer.strategy
        pl_module.to(strategy.root_device)  # from where it was taken just before
        try:
            with strategy.precision_plugin.forward_context():
                self.shield.remember(
                    (strategy.batch_to_device(batch) for batch in loader),
                    feed=self.feed,
                    limit=self.limit,
                )
        finally:
            pl_module.to(torch.device("cpu"))

    def state_dict(self) -> dict[str, Any]:
        """The shield's state, which is saved in every checkpoint."""
        return self.shield.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the shield when a checkpoint is resumed; one that is tested changes nothing."""
        if not self._fitting:
            return
        before = self.shield.n_tasks
        self.shield.load_state_dict(state_dict)
        warn_of_lost_tasks(self.shield, before, "Resume from a checkpoint of this task")
