"""Every ```python block of the README and docs runs, page by page, from top to bottom.

A ```text block right after it shows what it prints. Numbers may differ in their last digits on
another CPU. Blocks with prompts (>>>) are doctests; blocks marked ```py need a framework, a GPU or
a download, and are not run.
"""

import contextlib
import io
import re
from pathlib import Path
from unittest.mock import patch

import pytest

from conceptors.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(?!>>>)(.*?)^```\n(?:\n^```text\n(.*?)^```)?", re.M | re.S)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_blocks_print_what_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    with patch.dict(METHODS):  # a page may register a method of its own
        for source, expected in blocks(page):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source, str(page), "exec"), names)
            if expected:
                assert_alike(printed.getvalue(), expected)


def assert_alike(printed: str, expected: str) -> None:
    """The same words, and numbers within 3 %, or within 2 for percentages and 0.1 for others."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", expected).split(), printed
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(expected))
    for number, shown in pairs:
        tolerance = 2.0 if float(shown) > 10 else 0.1
        assert float(number) == pytest.approx(float(shown), rel=0.03, abs=tolerance), printed
