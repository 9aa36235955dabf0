"""The layer types that the shield supports, one file each; `register` adds more."""

from importlib import import_module

from conceptors.layers.base import (
    Block,
    Call,
    Draws,
    Rows,
    Rule,
    Sample,
    SecondMoment,
    find_rule,
    recognise,
    register,
)

__all__ = [
    "Block",
    "Call",
    "Draws",
    "Rows",
    "Rule",
    "Sample",
    "SecondMoment",
    "find_rule",
    "recognise",
    "register",
]

_MODULES = "attention conv experts linear magnitude norm product recurrent scale"
for _name in _MODULES.split():
    import_module(f"{__name__}.{_name}")  # registers its rules
