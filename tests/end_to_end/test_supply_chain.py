"""What is installed and from where: hashes, pins, the bill of materials, and what make asks."""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import conceptors

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
lock: Any = pytest.importorskip("lock", reason="not a checkout")
sbom: Any = pytest.importorskip("sbom", reason="not a checkout")

FILES = ("requirements.txt", "requirements-torch.txt", "requirements-torch-cpu.txt")
FRAMEWORKS = "requirements-frameworks.txt"


def locked(file: str) -> dict[str, str]:
    """Versions by name; every entry has a hash."""
    versions = {}
    for entry in (ROOT / file).read_text().replace("\\\n", " ").splitlines():
        if not entry.startswith("#"):
            pinned = re.match(r"([a-z0-9-]+)==(\S+)", entry)
            assert pinned, entry
            assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry
            versions[pinned[1]] = pinned[2]
    return versions


def test_the_lock_is_of_the_constraints() -> None:
    pins = lock.read_pins((ROOT / "constraints.txt").read_text())
    assert locked(FILES[0]) | locked(FILES[1]) == pins
    assert locked(FILES[2])["torch"] == f"{pins['torch']}+cpu"
    more = lock.read_pins((ROOT / "constraints-frameworks.txt").read_text())
    assert locked(FRAMEWORKS) == more
    assert not more.keys() & pins.keys()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert build["requires"] == [f"hatchling=={pins['hatchling']}"]


def test_make_installs_with_hashes_only() -> None:
    text = (ROOT / "Makefile").read_text()
    assert len(re.findall(r"pip install", text)) == 1  # the variable INSTALL
    for line in text.splitlines():
        if "$(INSTALL)" in line:
            assert "--require-hashes" in line or line.endswith("--no-build-isolation -e .")
    for file in (*FILES, FRAMEWORKS, "constraints.txt", "constraints-frameworks.txt", "Makefile"):
        assert "://" not in (ROOT / file).read_text()


def test_the_bill_of_materials() -> None:
    bill = sbom.bill()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    project, parts = bill["metadata"]["component"], bill["components"]
    assert {"torch", "numpy"} <= {part["name"].lower() for part in parts}
    refs = [part["bom-ref"] for part in [*parts, project]]
    assert len(set(refs)) == len(refs)
    needs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert any(ref.startswith("pkg:pypi/torch@") for ref in needs[project["bom-ref"]])


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
