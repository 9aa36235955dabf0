"""The shield and the readout as plugins of Avalanche strategies."""

from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from conceptors._internal.batches import Feed, moved
from conceptors._internal.checks import needs
from conceptors.readout import Readout
from conceptors.shield import Shield

with needs("avalanche", "ShieldPlugin needs Avalanche"):
    from avalanche.models.utils import avalanche_forward
    from avalanche.training.plugins import SupervisedPlugin


def feed_experience(model: nn.Module, batch: Any) -> Any:
    """Call the model on a batch (inputs, ..., task labels), with task labels if it needs them."""
    device = next(model.parameters()).device
    return avalanche_forward(model, moved(batch[0], device), moved(batch[-1], device))


_UNLIKELY = -1e4  # output of a class outside the loss; finite, as label smoothing needs


class ShieldPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[misc, call-arg]
    """Guard the optimizer before each experience, and remember the experience after it.

    Args:
        shield: the shield of the strategy's model.
        feed, limit: passed to `Shield.remember`. By default, batches reach the model as in the
            strategy.
    """

    def __init__(
        self, shield: Shield, *, feed: Feed = feed_experience, limit: int | None = None
    ) -> None:
        super().__init__()
        self.shield = shield
        self.feed = feed
        self.limit = limit

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Guard the strategy's optimizer; it may be new, and the model may have grown."""
        self.shield.guard(strategy.optimizer)

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Remember the experience."""
        self.shield.remember(strategy.dataloader, feed=self.feed, limit=self.limit)


class ReadoutPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Train the network for its features, and classify with a readout in closed form.

    During an experience, the loss contains only the experience's own classes. It therefore does
    not push down the outputs of earlier classes, nor the features that these need. After the
    experience, the readout learns it from the body's features. In evaluation, the readout's scores
    replace the strategy's outputs; elsewhere, call `readout.predict(body(x))`.

    Args:
        readout: a readout for the body's features.
        body: the part of the strategy's model that computes features `[n, readout.in_features]`.
    """

    def __init__(self, readout: Readout, body: nn.Module) -> None:
        super().__init__()
        self.readout = readout
        self.body = body

    def after_forward(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Remove the outputs of other experiences' classes from the loss."""
        outputs: Tensor = strategy.mb_output
        absent = torch.ones(outputs.shape[1], dtype=torch.bool, device=outputs.device)
        absent[list(strategy.experience.dataset.targets.uniques)] = False
        absent[strategy.mb_y] = False  # stored samples that another plugin mixes in
        strategy.mb_output = outputs.masked_fill(absent, _UNLIKELY)

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Learn the experience in closed form."""
        dataset = strategy.experience.dataset  # the strategy's loader may mix in stored samples
        collate = getattr(dataset, "collate_fn", None)
        batches = DataLoader(dataset, batch_size=strategy.train_mb_size, collate_fn=collate)
        self.readout.to(strategy.device).learn_from(
            self.body, batches, feed=feed_experience, target=itemgetter(1)
        )

    def after_eval_forward(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Return the readout's scores; classes it has not seen score as low as the lowest class."""
        if not self.readout.n_samples:
            return
        outputs: Tensor = strategy.mb_output
        scores = self.readout(feed_experience(self.body, strategy.mbatch))
        seen = torch.nonzero(self.readout.counts)[:, 0].to(scores.device)
        lowest = scores[:, seen].amin(1, keepdim=True).to(outputs.dtype)  # finite, as a loss needs
        replaced = lowest.repeat(1, max(outputs.shape[1], scores.shape[1]))
        replaced[:, seen] = scores[:, seen].to(outputs.dtype)
        strategy.mb_output = replaced
