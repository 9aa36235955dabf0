"""Layer types that the shield knows, a small file each; `register` adds more."""

from conceptors.layers import attention, conv, embedding, linear, norm, recurrent
from conceptors.layers.base import (
    Block,
    Call,
    Draws,
    Kept,
    Moment,
    Rows,
    Rule,
    Sample,
    find_rule,
    register,
    registered,
)

__all__ = [
    "Block",
    "Call",
    "Draws",
    "Kept",
    "Moment",
    "Rows",
    "Rule",
    "Sample",
    "attention",
    "conv",
    "embedding",
    "find_rule",
    "linear",
    "norm",
    "recurrent",
    "register",
    "registered",
]
