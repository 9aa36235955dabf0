"""Imports flow one way, and the core needs nothing but torch and numpy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import conceptors

SOURCE = Path(conceptors.__file__).parent

# Each module may import only from those named before it, and none of these from later ones.
CORE = ["_checks", "storage", "subspace", "algebra", "conceptor"]
CORE += ["correlation", "sketch", "aperture", "files"]
ALLOWED: dict[str, set[str]] = {
    "_checks": set(),
    "storage": set(),
    "subspace": set(),
    "algebra": {"_checks", "subspace"},
    "conceptor": {"_checks", "subspace", "algebra", "files"},  # files in save and load
    "correlation": {"_checks", "algebra", "conceptor"},
    "sketch": {"_checks", "algebra", "conceptor", "correlation"},
    "aperture": {"_checks", "algebra", "conceptor"},
    "files": {"_checks", "storage", "algebra", "conceptor"},
}


def imported(tree: ast.AST) -> set[str]:
    """Full names of everything imported; `from a import b` counts as both a and a.b."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            assert node.module is not None
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def siblings(names: set[str]) -> set[str]:
    """Modules of this package among the names."""
    parts = [name.split(".") for name in names if name.startswith("conceptors.")]
    modules = {path.stem for path in SOURCE.glob("*.py")} | {
        path.name for path in SOURCE.iterdir() if path.is_dir()
    }
    return {part[1] for part in parts} & modules


@pytest.mark.parametrize("name", CORE)
def test_core_modules_import_only_what_lies_below(name: str) -> None:
    tree = ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8"))
    assert siblings(imported(tree)) <= ALLOWED[name]


@pytest.mark.parametrize("name", CORE)
def test_at_import_time_the_order_is_strict(name: str) -> None:
    """Only functions may look ahead (Conceptor.save to files); modules never do."""
    tree = ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8"))
    top = ast.Module([node for node in tree.body if not isinstance(node, ast.ClassDef)], [])
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    top.body = [node for node in top.body if not isinstance(node, functions)]
    assert siblings(imported(top)) <= set(CORE[: CORE.index(name)])


@pytest.mark.parametrize("name", CORE)
def test_core_modules_know_nothing_of_networks_or_extras(name: str) -> None:
    tree = ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8"))
    for module in imported(tree):
        assert not module.startswith(("torch.nn", "torch.optim", "sklearn", "matplotlib"))
        if module.startswith("safetensors"):
            assert name == "storage"


def test_the_walk_sees_what_it_should() -> None:
    """A forbidden import would be found, in whatever way it is written."""
    for line in (
        "import conceptors.sketch",
        "from conceptors import sketch as s",
        "from conceptors.sketch import FrequentDirections",
        "def f():\n    from conceptors.sketch import _lower",
    ):
        assert siblings(imported(ast.parse(line))) == {"sketch"}
    assert "torch.nn" in imported(ast.parse("from torch import nn"))
    assert "torch.nn" in imported(ast.parse("import torch.nn as nn"))


BLOCKED = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("sklearn", "safetensors", "matplotlib", "scipy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run(code: str) -> str:
    """What a new Python without the optional packages prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_works_without_optional_packages() -> None:
    out = run(
        """
import tempfile, torch
import conceptors
from conceptors import Conceptor, Correlation, FrequentDirections, similarity

C = Conceptor.from_states(torch.eye(3), 1.0)
assert float(similarity(C, C | C)) > 0.9
assert "ConceptorRidge" in dir(conceptors)
for name in ("ConceptorRidge", "ConceptorRidgeClassifier", "ConceptorSGDRegressor",
             "ConceptorClassifier", "MemoryFullWarning"):
    try:
        getattr(conceptors, name)
    except ImportError as error:
        print(name, error)
try:
    C.save(tempfile.mktemp())
except ImportError as error:
    print("save", error)
try:
    Conceptor.load("nothing")
except ImportError as error:
    print("load", error)
try:
    conceptors.nothing
except AttributeError as error:
    print("nothing", error)
"""
    )
    lines = dict(line.split(" ", 1) for line in out.splitlines())
    for name in (
        "ConceptorRidge",
        "ConceptorRidgeClassifier",
        "ConceptorSGDRegressor",
        "ConceptorClassifier",
        "MemoryFullWarning",
    ):
        assert "pip install 'conceptors[sklearn]'" in lines[name]
    for name in ("save", "load"):
        assert "pip install 'conceptors[files]'" in lines[name]
    assert "'nothing'" in lines["nothing"]


def test_importing_loads_no_optional_package() -> None:
    out = run(
        """
import conceptors
print([m for m in ("sklearn", "safetensors", "matplotlib") if m in sys.modules])
"""
    )
    assert out.strip() == "[]"


def test_everything_announced_is_there() -> None:
    for name in conceptors.__all__:
        assert getattr(conceptors, name) is not None
    assert set(dir(conceptors)) == set(conceptors.__all__)
