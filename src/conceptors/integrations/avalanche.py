"""The shield and the readout as plugins of Avalanche's strategies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from conceptors._internal.batches import Feed, moved
from conceptors.readout import Readout
from conceptors.shield import Shield

try:
    from avalanche.models.utils import avalanche_forward
    from avalanche.training.plugins import SupervisedPlugin
except ImportError:
    raise ImportError("ShieldPlugin needs Avalanche: pip install 'conceptors[avalanche]'") from None


def feed_experience(model: nn.Module, batch: Any) -> Any:
    """Inputs and, where the model takes them, task labels of a batch (inputs, ..., task labels)."""
    device = next(model.parameters()).device
    return avalanche_forward(model, moved(batch[0], device), moved(batch[-1], device))


_UNLIKELY = -1e4  # an output of a class that does not compete; finite also with label smoothing


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


class ReadoutPlugin(SupervisedPlugin):  # type: ignore[misc]
    """A network that learns features, and a readout in closed form that answers.

    While an experience is learned, only its own classes compete in the loss: nothing pushes the
    outputs of earlier ones down, and with them the features that they need. After it, the readout
    learns the experience from what the body gives. When the strategy evaluates, its outputs are
    the readout's scores; elsewhere, ask `readout.predict(body(x))`.

    Args:
        readout: as wide as the body's features.
        body: the part of the strategy's model that gives features `[n, readout.in_features]`.
        shield: that protects the body, for `Readout.out_of_date`. Its ShieldPlugin comes first.
    """

    def __init__(self, readout: Readout, body: nn.Module, *, shield: Shield | None = None) -> None:
        super().__init__()
        self.readout = readout
        self.body = body
        self.shield = shield

    def after_forward(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Leave outputs of classes that are not learned now out of the loss."""
        outputs: Tensor = strategy.mb_output
        absent = torch.ones(outputs.shape[1], dtype=torch.bool, device=outputs.device)
        absent[list(strategy.experience.dataset.targets.uniques)] = False
        absent[strategy.mb_y] = False  # of stored samples, where another plugin mixes them in
        strategy.mb_output = outputs.masked_fill(absent, _UNLIKELY)

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Learn the experience in closed form."""
        own = strategy.experience.dataset  # the strategy's loader may have stored samples too
        batches = DataLoader(
            own, batch_size=strategy.train_mb_size, collate_fn=getattr(own, "collate_fn", None)
        )
        self.readout.to(strategy.device).learn_from(
            self.body, batches, feed=feed_experience, target=_labels, shield=self.shield
        )

    def after_eval_forward(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Answer by the readout; classes it has not seen are as unlikely as the least likely."""
        if not self.readout.n_samples:
            return
        outputs: Tensor = strategy.mb_output
        scores = self.readout(feed_experience(self.body, strategy.mbatch))
        seen = torch.nonzero(self.readout.counts)[:, 0].to(scores.device)
        least = scores[:, seen].amin(1, keepdim=True).to(outputs.dtype)  # finite, as a loss needs
        found = least.repeat(1, max(outputs.shape[1], scores.shape[1]))
        found[:, seen] = scores[:, seen].to(outputs.dtype)
        strategy.mb_output = found


def _labels(batch: Any) -> Tensor:
    """Of a batch (inputs, labels, ..., task labels)."""
    found: Tensor = batch[1]
    return found
