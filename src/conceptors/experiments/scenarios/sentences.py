"""CLINC150: domains of intents one after the other, as features of a frozen encoder."""

from __future__ import annotations

from typing import Any

import torch

from conceptors.experiments.scenarios.base import Scenario
from conceptors.experiments.scenarios.data.sentences import Encoded, Samples, load_encoded
from conceptors.experiments.scenarios.images import ScenarioKind, by_class, class_order


def _domains(data: Encoded, seed: int, options: dict[str, Any]) -> Scenario:
    """Intents are numbered domain by domain; domains are shuffled whole."""
    count, domains = options["tasks"], len(data.groups)
    classes = int(data.train[1].max()) + 1
    if classes % count:
        raise ValueError(
            f"{classes} classes cannot be shared evenly by {count} tasks; use {domains} or "
            f"another divisor of {classes}"
        )
    order = torch.arange(classes).reshape(domains, -1)[class_order(domains, seed, options)]
    in_order = count == domains and options["class_order"] == "fixed"
    names = list(data.groups) if in_order else [f"intents {k + 1}" for k in range(count)]

    def inputs(samples: Samples) -> Samples:
        x, y = samples
        return (x[:, -1] if options["layers"] == "last" else x.flatten(1)), y

    train, held, test = inputs(data.train), inputs(data.held), inputs(data.test)
    tasks = by_class(train, held, test, order.flatten().chunk(count), names)
    shape, heads = tuple(train[0].shape[1:]), bool(options["heads"])
    return Scenario(options["name"], tasks, seed, classes, shape, heads, options)


ABOUT = "150 intents by domain, features of a frozen MiniLM"
SENTENCES = {
    "clinc150": ScenarioKind(
        _domains, "clinc150", 10, ABOUT, load=load_encoded, more={"layers": "all"}
    )
}
