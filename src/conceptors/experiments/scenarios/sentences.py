"""CLINC150: domains of intents one after the other, as features of a frozen encoder."""

from __future__ import annotations

import torch

from conceptors.experiments.scenarios.base import Task
from conceptors.experiments.scenarios.data.sentences import Encoded, load_encoded
from conceptors.experiments.scenarios.images import (
    Options,
    ScenarioKind,
    by_class,
    check_divisible,
    class_order,
)


def _domains(data: Encoded, seed: int, options: Options) -> list[Task]:
    """Intents are numbered domain by domain; domains are shuffled whole."""
    count, domains = options["tasks"], len(data.groups)
    classes = int(data.train[1].max()) + 1
    check_divisible(classes, count)
    order = torch.arange(classes).reshape(domains, -1)[class_order(domains, seed, options)]
    in_order = count == domains and options["class_order"] == "fixed"
    names = data.groups if in_order else [f"intents {k + 1}" for k in range(count)]
    parts = [(x[:, -1] if options["layers"] == "last" else x.flatten(1), y) for x, y in data.parts]
    return by_class(parts, order.flatten(), count, names)


_ABOUT = "150 intents by domain, features of a frozen MiniLM"
SENTENCES = {"clinc150": ScenarioKind(_domains, "clinc150", 10, _ABOUT, load=load_encoded)}
