"""Words and numbers as people read them; names from a file made safe to show."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

MISSING = "–"


def clean(text: str) -> str:
    """`text` without what no page or figure can show: control codes and lone surrogates.

    >>> clean("a\\x00b\\ud800c")
    'a\ufffdb\ufffdc'
    """
    return "".join(
        "\ufffd" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c for c in text
    )


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters on one line, the end replaced by an ellipsis.

    >>> shorten("conceptor-aided back-propagation", 12)
    'conceptor-a…'
    """
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def in_markdown(text: str, limit: int = 40) -> str:
    """One line that Markdown shows as it is, also in a table.

    >>> print(in_markdown("trgp* | <b>"))
    trgp\\* \\| \\<b\\>
    """
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#!$" else c for c in shorten(text, limit))


def labels(names: Sequence[str], limit: int = 26) -> list[str]:
    """Short names that still differ from each other.

    >>> labels(["a long name", "a long game"], 7)
    ['a long…', 'a long… 2']
    """
    found: list[str] = []
    for name in names:
        short, k = shorten(name, limit) or "unnamed", 1
        base = short
        while short in found:
            k += 1
            short = f"{base} {k}"
        found.append(short)
    return found


def ranges(text: str) -> str:
    """Numbers in a row as a range.

    >>> ranges("digits 0, 1, 2, 3, 4"), ranges("digits 1, 3"), ranges("7, 8")
    ('digits 0–4', 'digits 1, 3', '7, 8')
    """

    def shown(match: re.Match[str]) -> str:
        numbers = [int(part) for part in match[0].split(",")]
        row = numbers == list(range(numbers[0], numbers[-1] + 1))
        return f"{numbers[0]}–{numbers[-1]}" if row else match[0]

    return re.sub(r"\b\d{1,6}(?:, *\d{1,6}){2,}\b", shown, text)


def number(value: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """A number with a true minus sign, a dash where there is none.

    >>> number(-1.234), number(0.5, 1, signed=True), number(None)
    ('−1.23', '+0.5', '–')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def spread(mean: float | None, sd: float | None, digits: int = 2) -> str:
    """`mean ± sd`, or the mean alone where there is no spread to speak of.

    >>> spread(94.91, 0.3), spread(94.91, None)
    ('94.91 ± 0.30', '94.91')
    """
    if sd is None or not math.isfinite(sd):
        return number(mean, digits)
    return f"{number(mean, digits)} ± {number(sd, digits)}"


def duration(seconds: float | None) -> str:
    """Seconds with as many digits as matter.

    >>> duration(0.123), duration(12.34), duration(1234.5)
    ('0.12', '12.3', '1,234')
    """
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    digits = 2 if seconds < 10 else 1 if seconds < 100 else 0
    return f"{seconds:,.{digits}f}"
