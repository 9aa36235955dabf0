"""Format numbers and words for readers; make names from files safe to show."""

import json
import math
import unicodedata
from collections.abc import Sequence
from typing import Any

MISSING = "–"
_JAVASCRIPT = {"constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable"}
_JAVASCRIPT |= {"toLocaleString", "toString", "valueOf", "__proto__", "__defineGetter__"}
_JAVASCRIPT |= {"__defineSetter__", "__lookupGetter__", "__lookupSetter__"}


def clean(value: Any) -> Any:
    """Replace control codes and lone surrogates, which pages and figures cannot show.

    Texts inside dictionaries and lists are cleaned too.

    >>> clean({"a\\x00b": ["\\ud800c", 1]})
    {'a\ufffdb': ['\ufffdc', 1]}
    """
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    if type(value) is not str or value.isprintable():
        return value
    return "".join(
        "\ufffd" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c
        for c in value
    )


def shorten(text: str, limit: int) -> str:
    """Shorten to at most `limit` characters on one line, ending in an ellipsis.

    >>> shorten("conceptor-aided back-propagation", 12)
    'conceptor-a…'
    """
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def labels(names: Sequence[str], limit: int = 26) -> list[str]:
    """Shorten names so that they still differ and JavaScript does not reserve them.

    >>> labels(["a long name", "a long game"], 7)
    ['a long…', 'a long… 2']
    """
    short_names: list[str] = []
    for name in names:
        base = shorten(name, limit) or "unnamed"
        if base in _JAVASCRIPT:  # Vega looks names up in plain objects
            base += "\u200b"  # a space of no width
        short, k = base, 1
        while short in short_names:
            k += 1
            short = f"{base} {k}"
        short_names.append(short)
    return short_names


def number(value: float | None, digits: int = 2) -> str:
    """Format a number with a true minus sign, or a dash if it is undefined.

    >>> number(-1.234), number(-0.001), number(12345.6, 0), number(None)
    ('−1.23', '0.00', '12,346', '–')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "−")


def spread(mean: float | None, sd: float | None, digits: int = 2) -> str:
    """Format `mean ± sd`, or the mean alone if the deviation is undefined.

    >>> spread(94.91, 0.3), spread(94.91, None)
    ('94.91 ± 0.30', '94.91')
    """
    if sd is None or not math.isfinite(sd):
        return number(mean, digits)
    return f"{number(mean, digits)} ± {number(sd, digits)}"


def setting(value: Any) -> str:
    """Format a setting as JSON, but without quotes around words."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
