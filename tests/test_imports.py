"""Imports flow one way, and the core needs nothing but torch and numpy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import conceptors

SOURCE = Path(conceptors.__file__).parent

# From the ground up: a package may import from those below it, and from itself.
STOREYS = ["_internal", "algebra", "moments", "layers", "shield", "readout", "estimators"]
STOREYS += ["experiments", "methods", "scenarios", "integrations", "report", "cli", "__main__"]
LATER = {"shield.shield": {"report"}}  # what a function may import when it is called
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py")
)


def tree_of(name: str) -> ast.Module:
    path = SOURCE.joinpath(*name.split("."))
    return ast.parse(path.with_suffix(".py").read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> set[str]:
    """Full names of everything imported; `from a import b` counts as both a and a.b."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            names |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


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

    return Outer().visit(tree)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", [name for name in MODULES if name != "__init__"])
def test_modules_import_only_what_lies_below(name: str) -> None:
    below = set(STOREYS[: STOREYS.index(name.split(".", maxsplit=1)[0]) + 1])
    assert packages(imported(at_import_time(tree_of(name)))) <= below
    assert packages(imported(tree_of(name))) <= below | LATER.get(name, set())


def test_no_two_modules_need_each_other() -> None:
    """Not even within a package."""
    needs = {}
    for name in (name for name in MODULES if not name.endswith("__init__")):
        names = imported(at_import_time(tree_of(name)))
        needs[name] = {other for other in MODULES if f"conceptors.{other}" in names}
    for name, others in needs.items():
        assert not [other for other in others if name in needs.get(other, ())], name


BLOCKED = """
import importlib.abc, sys
optional = ("sklearn", "safetensors", "altair", "vl_convert", "scipy", "transformers",
            "accelerate", "peft", "lightning", "avalanche")

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
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


CORE = """
import tempfile, torch
import conceptors
import conceptors.integrations
from conceptors import Conceptor, Correlation, FrequentDirections, similarity

print([name for name in optional if name in sys.modules])
C = Conceptor.from_states(torch.eye(3), 1.0)
assert float(similarity(C, C | C)) > 0.9
assert "ConceptorRidge" in dir(conceptors)
for work in (
    lambda: conceptors.ConceptorRidge,
    lambda: conceptors.ConceptorRidgeClassifier,
    lambda: conceptors.ConceptorSGDRegressor,
    lambda: __import__("conceptors.integrations.transformers"),
    lambda: __import__("conceptors.integrations.lightning"),
    lambda: __import__("conceptors.integrations.avalanche"),
    lambda: C.save(tempfile.mktemp()),
    lambda: Conceptor.load("nothing"),
):
    try:
        work()
    except ImportError as error:
        print(error)
"""


def test_the_core_works_without_optional_packages() -> None:
    loaded, *messages = run(CORE).splitlines()
    assert loaded == "[]"
    extras = ["sklearn"] * 3 + ["transformers", "lightning", "avalanche"] + ["files"] * 2
    assert len(messages) == len(extras)
    for message, extra in zip(messages, extras):
        assert f"pip install 'conceptors[{extra}]'" in message


def test_everything_announced_is_there() -> None:
    for name in conceptors.__all__:
        assert getattr(conceptors, name) is not None
    assert set(dir(conceptors)) == set(conceptors.__all__)
    with pytest.raises(AttributeError, match="'nothing'"):
        conceptors.nothing  # noqa: B018
