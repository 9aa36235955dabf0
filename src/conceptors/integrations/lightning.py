"""The shield as a callback of Lightning's Trainer."""

from __future__ import annotations

from typing import Any

import torch

from conceptors._internal.batches import Feed
from conceptors.integrations.going_back import warn_if_back
from conceptors.shield import Shield

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise ImportError(
        "ShieldCallback needs lightning: pip install 'conceptors[lightning]'"
    ) from None


class ShieldCallback(Callback):  # type: ignore[misc]
    """Every call of `fit` is one task: guarded from its first step, remembered after its last.

    The shield's state is part of every checkpoint, and `fit(..., ckpt_path=...)` restores it.

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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Know what a checkpoint is loaded for."""
        self._fitting = stage == "fit"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Guard all optimizers; before, there are none."""
        for optimizer in trainer.optimizers:
            self.shield.guard(optimizer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the task: after the last checkpoint, so that one resumed does it again."""
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
        warn_if_back(self.shield, before, "Resume from a checkpoint of this task")
