"""Statistics of norms, measured once: an image's outputs do not depend on others after that."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conceptors.experiments.networks import AlexNet
from conceptors.experiments.scenarios import Split

_MOST = 4000  # samples that are measured
_AT_ONCE = 1000


@torch.no_grad()
def fix_norms(model: AlexNet, split: Split, seed: int) -> None:
    """Let norms use mean and variance of a task's training samples from here on.

    One norm after the other, each with its own pass: later norms see the fixed earlier ones.
    """
    generator = torch.Generator().manual_seed(179_424_673 + seed)
    places = torch.randperm(len(split), generator=generator)[:_MOST].to(split.members.device)
    parts = places.chunk(-(-len(places) // _AT_ONCE))
    is_training = model.training
    model.eval()
    for norm in model.norms:
        sums: list[Tensor] = []

        def add(norm: Any, inputs: tuple[Tensor, ...], sums: list[Tensor] = sums) -> None:
            x = inputs[0].transpose(0, 1).flatten(1).double()  # [channels, n]
            sums.append(
                torch.stack([x.sum(1), x.square().sum(1), torch.full_like(x[:, 0], x.shape[1])])
            )

        hook = norm.register_forward_pre_hook(add)
        try:
            for part in parts:
                model(split.take(part)[0])
        finally:
            hook.remove()
        total, squares, count = torch.stack(sums).sum(0)
        mean = total / count
        variance = squares / count - mean.square()
        model.fix_statistics(norm, mean.float(), variance.float())
    model.train(is_training)
