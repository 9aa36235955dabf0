"""The rows of the table, in order."""

from __future__ import annotations

import importlib

from conceptors.bench.pretrained.adapters import Lora, Osf
from conceptors.bench.pretrained.closed import Frozen, ShieldedBody
from conceptors.bench.pretrained.methods import Ewc, Joint, Method
from conceptors.bench.pretrained.shielded import Shielded

ROWS: list[type[Method]] = [
    Method,
    Ewc,
    Lora,
    Osf,
    Shielded,
    Frozen,
    ShieldedBody,
    Joint,
]
METHODS = {row.name: row for row in ROWS}


def missing(name: str) -> str | None:
    """Why a method cannot be run here: what it needs cannot be imported."""
    needs = METHODS[name].needs
    try:
        if needs is not None:
            importlib.import_module(needs)
    except ImportError as error:  # it, or something that it needs itself
        return f"{needs} cannot be imported ({error})"
    return None
