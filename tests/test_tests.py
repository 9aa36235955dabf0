"""Every test checks something, and test files stay short and share their helpers."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
SOURCES = {str(file.relative_to(TESTS)): file.read_text("utf-8") for file in TESTS.rglob("*.py")}
TREES = {name: ast.parse(text) for name, text in SOURCES.items()}
CHECKS = ("raises", "warns", "fail")  # of pytest


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def called(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            yield getattr(call.func, "attr", getattr(call.func, "id", ""))


def checking() -> set[str]:
    """Names of all functions that check, by themselves or by others that they call."""
    found: set[str] = set(CHECKS)
    calls: dict[str, set[str]] = defaultdict(set)
    for tree in TREES.values():
        for function in functions(tree):
            names = set(called(function))
            calls[function.name] |= names
            asserts = any(isinstance(node, ast.Assert) for node in ast.walk(function))
            if asserts or any(name.startswith("assert_") for name in names):
                found.add(function.name)
    while more := {name for name, names in calls.items() if names & found} - found:
        found |= more
    return found


def test_every_test_checks_something() -> None:
    fine = checking()
    idle = [
        f"{file}:{function.lineno} {function.name}"
        for file, tree in TREES.items()
        for function in functions(tree)
        if function.name.startswith("test_") and function.name not in fine
    ]
    assert not idle, f"no assertion in {idle}"


def test_no_file_is_long() -> None:
    sizes = {name: len(text.splitlines()) for name, text in SOURCES.items()}
    long = {name: size for name, size in sizes.items() if size > 400}
    assert not long, f"over 400 lines, split by idea: {long}"


def test_no_helper_is_written_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_"):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                text = "\n".join(ast.unparse(line) for line in body)
                places[text].append(f"{file}:{node.lineno} {node.name}")
    twice = [found for found in places.values() if len(found) > 1]
    assert not twice, f"the same helper in several places, share it: {twice}"
