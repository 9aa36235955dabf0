"""The rows of the table, in order."""

from __future__ import annotations

import importlib.util

from conceptors.bench.pretrained.adapters import Lora, Osf
from conceptors.bench.pretrained.closed import Frozen, ShieldedBody
from conceptors.bench.pretrained.methods import Ewc, Joint, Method
from conceptors.bench.pretrained.shielded import ChosenShield, Shielded

ROWS: list[type[Method]] = [
    Method,
    Ewc,
    Lora,
    Osf,
    Shielded,
    ChosenShield,
    Frozen,
    ShieldedBody,
    Joint,
]
METHODS = {row.name: row for row in ROWS}


def missing(name: str) -> str | None:
    """The package that a method needs and that is not here."""
    needs = METHODS[name].needs
    return needs if needs and importlib.util.find_spec(needs) is None else None
