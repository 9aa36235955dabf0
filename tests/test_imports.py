"""Imports flow one way, and the core needs nothing but torch and numpy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import conceptors

SOURCE = Path(conceptors.__file__).parent

# From the ground up: a package may import from those below it, and from itself.
STOREYS = ["_internal", "algebra", "moments", "estimators", "layers", "shield", "experiments"]
STOREYS += ["methods", "scenarios", "integrations", "report", "bench", "cli", "__main__"]
# what a function may import when it is called
LATER = {"shield.inspection": {"report"}}
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py")
)


def tree_of(name: str) -> ast.Module:
    path = SOURCE.joinpath(*name.split("."))
    return ast.parse(path.with_suffix(".py").read_text(encoding="utf-8"))


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


def packages(names: set[str]) -> set[str]:
    """Packages of ours among the names."""
    parts = [name.split(".") for name in names if name.startswith("conceptors.")]
    return {part[1] for part in parts} & set(STOREYS)


def at_import_time(tree: ast.Module) -> ast.Module:
    """Without what is inside functions, or for type checkers only."""

    class Outer(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST | None:
            typing = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return None if typing else self.generic_visit(node)

    found: ast.Module = Outer().visit(tree)
    return found


def test_every_module_has_its_storey() -> None:
    top = {name.split(".")[0] for name in MODULES} - {"__init__"}
    assert top == set(STOREYS)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "__init__"])
def test_modules_import_only_what_lies_below(name: str) -> None:
    own = name.split(".", maxsplit=1)[0]
    below = set(STOREYS[: STOREYS.index(own) + 1])
    assert packages(imported(at_import_time(tree_of(name)))) <= below
    assert packages(imported(tree_of(name))) <= below | LATER.get(name, set())


def test_no_two_modules_need_each_other() -> None:
    """Not even within a package."""
    needs = {}
    for name in (name for name in MODULES if not name.endswith("__init__")):
        found = imported(at_import_time(tree_of(name)))
        needs[name] = {other for other in MODULES if f"conceptors.{other}" in found}
    for name, others in needs.items():
        assert not [other for other in others if name in needs.get(other, ())], name


@pytest.mark.parametrize("name", [n for n in MODULES if n.startswith(("algebra.", "moments."))])
def test_mathematics_knows_nothing_of_networks_or_extras(name: str) -> None:
    for module in imported(tree_of(name)):
        extras = ("torch.nn", "torch.optim", "sklearn", "altair", "safetensors")
        assert not module.startswith(extras)


def test_shipped_code_needs_no_mocks() -> None:
    assert [n for n in MODULES if "unittest.mock" in imported(tree_of(n))] == []


def test_the_walk_sees_what_it_should() -> None:
    """A forbidden import would be found, in whatever way it is written."""
    for line in (
        "import conceptors.moments",
        "from conceptors import moments as s",
        "from conceptors.moments.correlation import Correlation",
        "def f():\n    from conceptors.moments import _lower",
    ):
        assert packages(imported(ast.parse(line))) == {"moments"}
    assert packages(imported(at_import_time(ast.parse(line)))) == set()
    assert "torch.nn" in imported(ast.parse("from torch import nn"))
    assert "torch.nn" in imported(ast.parse("import torch.nn as nn"))


BLOCKED = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        optional = ("sklearn", "safetensors", "altair", "vl_convert", "scipy", "transformers",
                    "accelerate", "peft", "lightning", "avalanche")
        if name.split(".")[0] in optional:
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
             "ConceptorClassifier", "ContinualMLPClassifier", "MemoryFullWarning"):
    try:
        getattr(conceptors, name)
    except ImportError as error:
        print(name, error)
for name in ("transformers", "lightning", "avalanche"):
    try:
        __import__(f"conceptors.integrations.{name}")
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
        "ContinualMLPClassifier",
        "MemoryFullWarning",
    ):
        assert "pip install 'conceptors[sklearn]'" in lines[name]
    for name in ("transformers", "lightning", "avalanche"):
        assert f"pip install 'conceptors[{name}]'" in lines[name]
    for name in ("save", "load"):
        assert "pip install 'conceptors[files]'" in lines[name]
    assert "'nothing'" in lines["nothing"]


def test_importing_loads_no_optional_package() -> None:
    out = run(
        """
import conceptors
import conceptors.integrations
frameworks = ("transformers", "accelerate", "peft", "lightning", "avalanche")
print([m for m in ("sklearn", "safetensors", "altair", *frameworks) if m in sys.modules])
"""
    )
    assert out.strip() == "[]"


def test_everything_announced_is_there() -> None:
    for name in conceptors.__all__:
        assert getattr(conceptors, name) is not None
    assert set(dir(conceptors)) == set(conceptors.__all__)
