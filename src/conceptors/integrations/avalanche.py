"""The shield as a plugin of Avalanche's strategies."""

from __future__ import annotations

from typing import Any

from torch import nn

from conceptors._internal.batches import Feed, moved
from conceptors.shield import Shield

try:
    from avalanche.models.utils import avalanche_forward
    from avalanche.training.plugins import SupervisedPlugin
except ImportError:
    raise ImportError("ShieldPlugin needs Avalanche: pip install 'conceptors[avalanche]'") from None


def feed_experience(model: nn.Module, batch: Any) -> object:
    """Inputs and, where the model takes them, task labels of a batch (inputs, ..., task labels)."""
    device = next(model.parameters()).device
    return avalanche_forward(model, moved(batch[0], device), moved(batch[-1], device))


class ShieldPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[misc, call-arg]
    """Every experience is one task: guarded from its first step, remembered after its last.

    Args:
        shield: of the strategy's model.
        feed, limit: of `Shield.remember`; by default a batch is passed as strategies pass it.
    """

    def __init__(
        self, shield: Shield, *, feed: Feed = feed_experience, limit: int | None = None
    ) -> None:
        super().__init__()
        self.shield = shield
        self.feed = feed
        self.limit = limit

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Guard the optimizer, which may be a new one, of a model that may have grown."""
        self.shield.guard(strategy.optimizer)

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Remember the experience."""
        self.shield.remember(strategy.dataloader, feed=self.feed, limit=self.limit)
