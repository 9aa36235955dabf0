"""The shield as a callback of Lightning's Trainer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from conceptors._internal.batches import Feed
from conceptors.shield import Shield
from conceptors.shield.health import warn_of_lost_tasks

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
except ImportError:
    raise ImportError(
        "lightning is not installed, and ShieldCallback needs it; run "
        "pip install 'conceptors[lightning]'"
    ) from None


class ShieldCallback(Callback):  # type: ignore[misc]
    """Treat every call of `fit` as one task: guard the optimizers, then remember the task.

    The shield's state is part of every checkpoint, and `fit(..., ckpt_path=...)` restores it.

    From the second task on, `gradient_clip_val` limits the projected gradients. Otherwise the
    protected components, which are not applied, would use up the limit. This does not apply to
    clipping by value, scaled gradients (16-mixed), and an overridden
    `configure_gradient_clipping`.

    Args:
        shield: the shield of the LightningModule, or of a part of it.
        feed, limit: passed to `Shield.remember`. By default, the shielded module is called with
            the first element of a batch.
    """

    def __init__(
        self, shield: Shield, *, feed: Feed | None = None, limit: int | None = None
    ) -> None:
        self.shield = shield
        self.feed = feed
        self.limit = limit
        self._fitting = False
        self._clipping: tuple[Trainer, float] | None = (
            None  # its gradient_clip_val is None meanwhile
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Record whether a checkpoint is loaded for training."""
        self._fitting = stage == "fit"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Guard all optimizers, which exist from here on."""
        clips = self._clips(trainer, pl_module)
        for optimizer in trainer.optimizers:
            self.shield.guard(optimizer, between=partial(self._clip, optimizer) if clips else None)
        if clips and self.shield.n_tasks:
            self._clipping = trainer, trainer.gradient_clip_val
            trainer.gradient_clip_val = None

    def _clips(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        """Whether this callback can clip gradients after the projection, instead of Trainer."""
        hook = "configure_gradient_clipping"
        return (
            bool(trainer.gradient_clip_val)
            and trainer.gradient_clip_algorithm in (None, "norm")
            and str(trainer.precision) != "16-mixed"
            and getattr(type(pl_module), hook) is getattr(LightningModule, hook)
            and not isinstance(trainer.strategy, (FSDPStrategy, DeepSpeedStrategy))
        )

    def _clip(self, optimizer: Any) -> None:
        if self._clipping is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self._clipping[1])

    def _restore_clipping(self) -> None:
        if self._clipping is not None:
            trainer, limit = self._clipping
            trainer.gradient_clip_val, self._clipping = limit, None

    def on_exception(self, *_: Any) -> None:
        """Restore the Trainer's settings."""
        self._restore_clipping()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the task after the last checkpoint, so a resumed run remembers it again."""
        self._restore_clipping()
        loader, strategy = trainer.train_dataloader, trainer.strategy
        pl_module.to(strategy.root_device)  # Trainer has just moved it to the CPU
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
        """Return the shield's state, which is saved in every checkpoint."""
        return self.shield.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the shield when training resumes; testing a checkpoint changes nothing."""
        if not self._fitting:
            return
        before = self.shield.n_tasks
        self.shield.load_state_dict(state_dict)
        warn_of_lost_tasks(before, self.shield.n_tasks, "Resume from a checkpoint of this task")
