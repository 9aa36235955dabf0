"""Layer types that the shield knows, a small file each; `register` adds more."""

from conceptors.layers import attention, conv, embedding, linear, norm, recurrent
from conceptors.layers.base import (
    Block,
    Call,
    Draws,
    OwnedRows,
    Rows,
    RowsByBlock,
    Rule,
    Sample,
    SecondMoment,
    find_rule,
    register,
    registered,
)

__all__ = [
    "Block",
    "Call",
    "Draws",
    "OwnedRows",
    "Rows",
    "RowsByBlock",
    "Rule",
    "Sample",
    "SecondMoment",
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
