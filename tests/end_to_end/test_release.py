"""What files promise about a release; `make release-check` builds and installs one."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

import conceptors

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "CITATION.cff").exists(), reason="not a checkout")


def test_version_and_pythons_agree() -> None:
    project, changelog = (ROOT / n for n in ("pyproject.toml", "CHANGELOG.md"))
    first = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", changelog.read_text(), re.M)
    assert first is not None
    assert first[1] == conceptors.__version__
    text = project.read_text()
    assert 'dynamic = ["version"]' in text
    named = [int(minor) for minor in re.findall(r"Python :: 3\.(\d+)", text)]
    assert named == list(range(named[0], named[-1] + 1))
    assert f'requires-python = ">=3.{named[0]}"' in text


def test_the_core_needs_torch_and_numpy_alone() -> None:
    needed = importlib.metadata.requires("conceptors") or []
    assert {re.split(r"[^\w-]", line)[0] for line in needed if "extra ==" not in line} == {
        *("torch", "numpy")
    }
