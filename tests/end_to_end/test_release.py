"""What a release promises, as far as files say it; `make release-check` builds and installs one."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

import conceptors

ROOT = Path(__file__).parents[2]


def text_of(name: str) -> str:
    file = ROOT / name
    if not file.exists():
        pytest.skip(f"{name} is not here: tests run outside of a checkout")
    return file.read_text("utf-8")


def test_the_version_is_written_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", conceptors.__version__)
    assert 'dynamic = ["version"]' in text_of("pyproject.toml")
    for name in ("pyproject.toml", "CITATION.cff"):
        assert not re.search(r"^version\s*[=:]", text_of(name), re.MULTILINE)


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", text_of("CHANGELOG.md"), re.M)
    assert first is not None
    assert first[1] == conceptors.__version__


def test_every_python_that_is_claimed_is_allowed() -> None:
    text = text_of("pyproject.toml")
    named = re.findall(r"Python :: 3\.(\d+)", text)
    least = re.search(r'requires-python = ">=3\.(\d+)"', text)
    assert least is not None
    assert named[0] == least[1]
    assert list(map(int, named)) == list(range(int(named[0]), int(named[-1]) + 1))


def test_the_citation_names_the_paper_of_the_readme() -> None:
    citation, readme = text_of("CITATION.cff"), text_of("README.md")
    for part in ("Overcoming Catastrophic Interference by Conceptors", "arXiv:1707.04853"):
        assert part in citation
        assert part in readme
    assert citation.startswith("cff-version: 1.2.0\n")


def test_the_core_needs_torch_and_numpy_alone() -> None:
    needed = importlib.metadata.requires("conceptors") or []
    core = {re.split(r"[^\w-]", line)[0] for line in needed if "extra ==" not in line}
    assert core == {"torch", "numpy"}
