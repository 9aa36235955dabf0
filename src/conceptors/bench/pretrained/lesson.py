"""One domain, or all of them mixed, learned by AdamW: the loop that all methods share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from conceptors.bench.pretrained.model import Classifier
from conceptors.bench.pretrained.stream import Part

WARM = 0.1  # share of the steps in which the rate rises; then it falls to 0


def train(
    model: Classifier,
    part: Part,
    domain: int | None,
    settings: dict[str, Any],
    *,
    prepare: Callable[[Optimizer], object] | None = None,
    before_step: Callable[[], None] | None = None,
) -> None:
    """Cross-entropy over the domain's own intents; over all intents if `domain` is None.

    A new AdamW, which `prepare` is given; `before_step` is called when gradients are there.
    """
    first = 0 if domain is None else model.first[domain]
    body = [p for p in model.body.parameters() if p.requires_grad]
    optimizer = AdamW(
        [
            {"params": body, "lr": settings["rate"]},
            {"params": model.head(domain), "lr": settings["head_rate"], "weight_decay": 0.0},
        ],
        fused=part.ids.is_cuda,
    )
    if prepare is not None:
        prepare(optimizer)
    steps = settings["epochs"] * -(-len(part) // settings["batch"])
    schedule = LambdaLR(optimizer, lambda step: _share_of_rate(step, steps))
    model.train()
    for _ in range(settings["epochs"]):
        for at in torch.randperm(len(part)).split(settings["batch"]):
            ids, labels = part.rows(at)
            optimizer.zero_grad()
            functional.cross_entropy(model(ids, domain), labels - first).backward()
            if before_step is not None:
                before_step()
            optimizer.step()
            schedule.step()
    model.eval()


def _share_of_rate(step: int, steps: int) -> float:
    warm = max(1, round(WARM * steps))
    return min((step + 1) / warm, (steps - step) / max(1, steps - warm))
