"""CLINC150: domains of intents one after the other, as features of a frozen encoder."""

from __future__ import annotations

from typing import Any

import torch

from conceptors.experiments.scenarios.base import Scenario
from conceptors.experiments.scenarios.data.encoded import Encoded, Samples, load_encoded
from conceptors.experiments.scenarios.images import ScenarioKind, by_class, class_orders


def _domains(data: Encoded, seeds: list[int], options: dict[str, Any]) -> Scenario:
    """Intents are numbered domain by domain; domains are shuffled whole."""
    count, domains = options["tasks"], len(data.groups)
    classes = int(data.train[1].max()) + 1
    if classes % count:
        raise ValueError(
            f"{classes} classes cannot be shared evenly by {count} tasks; use {domains} or "
            f"another divisor of {classes}"
        )
    size = classes // domains
    first = size * class_orders(domains, seeds, options)  # [seeds, domains]
    orders = (first[..., None] + torch.arange(size)).flatten(1)

    def seen(samples: Samples) -> Samples:
        x, y = samples
        return (x[:, -1] if options["layers"] == "last" else x.flatten(1)), y

    own = count == domains and options["class_order"] == "fixed"
    names = list(data.groups) if own else [f"intents {k + 1}" for k in range(count)]
    train, held, test = seen(data.train), seen(data.held), seen(data.test)
    tasks = by_class(train, held, test, orders.chunk(count, 1), names)
    inputs = (train[0].shape[1],)
    return Scenario(options["name"], tasks, seeds, classes, inputs, bool(options["heads"]), options)


SENTENCES = {
    "clinc150": ScenarioKind(
        _domains,
        "clinc150",
        10,
        "150 intents by domain, features of a frozen MiniLM",
        encoded=load_encoded,
    ),
}
