"""The shield as a callback of Lightning's Trainer."""

from typing import Any

import torch

from conceptors._internal.batches import Feed
from conceptors._internal.checks import needs
from conceptors.shield import Shield
from conceptors.shield.health import warn_of_lost_tasks

with needs("lightning", "ShieldCallback needs lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer


class ShieldCallback(Callback):  # type: ignore[misc]
    """Treat every call of `fit` as one task: guard the optimizers, then remember the task.

    The shield's state is part of every checkpoint, and `fit(..., ckpt_path=...)` restores it.

    Gradients are projected before Trainer clips them (`gradient_clip_val`). Otherwise the protected
    components, which are not applied, would use up the limit.

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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Record whether a checkpoint is loaded for training."""
        self._fitting = stage == "fit"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Guard all optimizers, which exist from here on."""
        for optimizer in trainer.optimizers:
            self.shield.guard(optimizer)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Project the gradients before they are clipped."""
        self.shield.project_(optimizer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the task after the last checkpoint, so a resumed run remembers it again."""
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
