"""Hostile results files: `run` and `report` refuse the same ones, in one line and at once."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conceptors.cli import main
from conceptors.experiments.results import Results, readable
from experiments.tasks import blobs

WORDS = ["run", "disjoint-mnist", "--method", "sgd", "--device", "cpu", "--quiet"]
WORDS += ["--set", "hidden=6", "--set", "steps=2", "--set", "batch=8"]
Damage = Callable[[dict[str, Any]], Any]


def renaming(name: str) -> Damage:
    """Damage that gives the method another name throughout."""

    def rename(results: dict[str, Any]) -> None:
        results["runs"][0]["method"] = name
        for methods in (results["summary"], results["identity"]["configs"]):
            methods[name] = methods.pop("sgd")

    return rename


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conceptors.experiments.scenarios.images.load", blobs)
    monkeypatch.setattr("conceptors.report.seen.load", blobs)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run wrote."""
    folder = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conceptors.experiments.scenarios.images.load", blobs)
        assert main([*WORDS, "--out", str(folder)]) == 0
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def refusals(
    content: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[list[str], float]:
    """What `run` and `report` say of a file with this content, and how long the slower took."""
    path = folder / "results.json"
    path.write_text(content, "utf-8")
    capsys.readouterr()
    said, slowest = [], 0.0
    for words in ([*WORDS, "--seeds", "2", "--out", str(folder)], ["report", str(folder)]):
        began = time.perf_counter()
        assert main(words) == 2
        slowest = max(slowest, time.perf_counter() - began)
        said.append(capsys.readouterr().err)
    assert path.read_text("utf-8") == content
    return said, slowest


def deep(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


DAMAGES: dict[str, tuple[Damage, str]] = {
    "doubled seed": (lambda r: r["runs"].append(r["runs"][0]), "second run of 'sgd' with seed 0"),
    "NaN accuracy": (lambda r: r["runs"][0].update(final_accuracy=math.nan), "NaN is not a number"),
    "NaN forgetting": (lambda r: r["runs"][0].update(forgetting=math.nan), "NaN is not a number"),
    "NaN in the history": (lambda r: r["runs"][0].update(history=[math.nan]), "NaN is not a"),
    "infinite setting": (lambda r: r["runs"][0]["config"].update(rate=math.inf), "Infinity is not"),
    "number as text": (lambda r: r["runs"][0].update(seconds="1.5"), "must be a number, got '1.5'"),
    "seed as text": (lambda r: r["runs"][0].update(seed="0"), "seed must be a whole number"),
    "huge accuracy": (lambda r: r["runs"][0].update(final_accuracy=10**400), "final_accuracy"),
    "huge seconds": (lambda r: r["runs"][0].update(seconds=10**400), r"runs[0].seconds"),
    "huge forgetting": (lambda r: r["runs"][0].update(forgetting=10**400), r"runs[0].forgetting"),
    "huge seed": (lambda r: r["runs"][0].update(seed=10**400), r"runs[0].seed"),
    "huge extra": (lambda r: r["runs"][0].update(own={"a": [10**400]}), r"runs[0].own.a[0]"),
    "huge mean": (lambda r: r["summary"]["sgd"].update(mean=10**400), "mean"),
    "deep history": (lambda r: r["runs"][0].update(history=deep(900)), "nested more than"),
    "deep environment": (lambda r: r.update(environment=deep(500)), "nested more than"),
    "deep schema": (lambda r: r.update(schema=deep(900)), "nested more than"),
    **{
        f"method {name}": (renaming(name), f"summary has the name {name!r}")
        for name in ("constructor", "toString", "hasOwnProperty", "__proto__")
    },
    "reference valueOf": (
        lambda r: r.update(reference={"valueOf": {"mean": 1.0}}),
        "reference has the name 'valueOf'. Charts cannot show it, because JavaScript reserves "
        "it. Rename it.",
    ),
    "layer constructor": (
        lambda r: r["runs"][0].update(quota={"constructor": [0.1, 0.2]}),
        "runs[0].quota has the name 'constructor'",
    ),
    "schema true": (lambda r: r.update(schema=True), "schema is True"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_both_commands_refuse_it(
    name: str, good: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = DAMAGES[name]
    results = copy.deepcopy(good)
    damage(results)
    said, seconds = refusals(json.dumps(results), tmp_path, capsys)
    for line in said:
        assert message in line
        assert str(tmp_path / "results.json") in line
        assert line.count("\n") == 1
        assert len(line) < 500 + len(str(tmp_path))
    assert seconds < 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"own": 1', '"own": ' + "[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('"own": 1', '"own": ' + '{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ('"own": 1', '"own": ' + "[" * 100_000, "nested too deeply"),
        ('"own": 1', '"own": 1e999', "own"),
        ('"own": 1', '"own": 1' + "0" * 5000, "a number of more digits than Python reads"),
        ('"own": 1', '"own": -Infinity', "-Infinity is not a number"),
    ],
    ids=["lists", "objects", "open", "float", "digits", "infinity"],
)
def test_text_that_no_run_writes(
    old: str,
    new: str,
    message: str,
    good: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = copy.deepcopy(good)
    results["runs"][0]["own"] = 1
    said, seconds = refusals(json.dumps(results).replace(old, new), tmp_path, capsys)
    for line in said:
        assert message in line
        assert str(tmp_path / "results.json") in line
        assert line.count("\n") == 1
        assert len(line) < 500 + len(str(tmp_path))
    assert seconds < 1


def test_deep_content_is_laid_out_at_once() -> None:
    """Took minutes: lines of nested lists are indented, and the blanks were matched three ways."""
    began = time.perf_counter()
    assert json.loads(readable({"deep": deep(300)})) == {"deep": deep(300)}
    assert time.perf_counter() - began < 1


def test_laying_out_leaves_texts_alone(good: dict[str, Any], tmp_path: Path) -> None:
    results = Results.from_json(copy.deepcopy(good))
    results.title = "a [  1,  2  ] and \ud800"
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json").title == results.title
    assert "[1, 2]" in readable({"a": [1, 2]})
