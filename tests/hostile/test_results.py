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
    "doubled seed": (lambda r: r["runs"].append(r["runs"][0]), "runs[1] is a second run"),
    "NaN accuracy": (lambda r: r["runs"][0].update(final_accuracy=math.nan), "not JSON compliant"),
    "NaN in the history": (lambda r: r["runs"][0].update(history=[math.nan]), "not JSON compliant"),
    "infinite setting": (lambda r: r["runs"][0]["config"].update(rate=math.inf), "not JSON compl"),
    "number as text": (lambda r: r["runs"][0].update(seconds="1.5"), "must be a finite number"),
    "seed as text": (lambda r: r["runs"][0].update(seed="0"), "seed must be a whole number"),
    "huge accuracy": (lambda r: r["runs"][0].update(final_accuracy=10**400), "final_accuracy"),
    "huge seconds": (lambda r: r["runs"][0].update(seconds=10**400), "runs[0].seconds"),
    "huge seed": (lambda r: r["runs"][0].update(seed=10**400), "runs[0].seed"),
    "huge mean": (lambda r: r["summary"]["sgd"].update(mean=10**400), "summary['sgd'].mean"),
    "no accuracy": (lambda r: r["runs"][0].pop("accuracy"), "runs[0].accuracy must be a list"),
    "short accuracy": (lambda r: r["runs"][0]["accuracy"][1].pop(), "accuracy[1]"),
    "other method": (lambda r: r["runs"][0].update(method="x"), "must have the same methods"),
    "history of texts": (lambda r: r["runs"][0].update(history=["x"]), "runs[0].history[0] must"),
    "deep history": (lambda r: r["runs"][0].update(history=deep(900)), "nested more than"),
    "deep environment": (lambda r: r.update(environment=deep(500)), "nested more than"),
    "method constructor": (renaming("constructor"), "has the name 'constructor'"),
    "method __proto__": (renaming("__proto__"), "has the name '__proto__'"),
    "layer constructor": (
        lambda r: r["runs"][0].update(quota={"constructor": [0.1, 0.2]}),
        "runs[0].quota has the name 'constructor'",
    ),
    "schema true": (lambda r: r.update(schema=True), "schema must be"),
    "newer schema": (lambda r: r.update(schema=2), "schema must be"),
    "identity": (lambda r: r.update(identity=[]), "identity must be an object"),
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
    ("content", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ("1e999", "not JSON compliant"),
        ("1" + "0" * 5000, "is not a results file"),
        ("-Infinity", "not JSON compliant"),
        ('"cut', "is not JSON"),
    ],
    ids=["lists", "objects", "open", "float", "digits", "infinity", "cut"],
)
def test_text_that_no_run_writes(
    content: str,
    message: str,
    good: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = copy.deepcopy(good)
    results["runs"][0]["own"] = 1
    text = json.dumps(results).replace('"own": 1', f'"own": {content}')
    said, seconds = refusals(text, tmp_path, capsys)
    for line in said:
        assert message in line
        assert str(tmp_path / "results.json") in line
        assert line.count("\n") == 1
        assert len(line) < 500 + len(str(tmp_path))
    assert seconds < 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'"text"', b'{"schema": 1}'])
def test_a_damaged_file_is_left_untouched(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_bytes(content)
    assert main([*WORDS, "--out", str(tmp_path)]) == 2
    assert "move it away, or choose another --out" in capsys.readouterr().err
    assert (tmp_path / "results.json").read_bytes() == content


def test_laying_out_is_quick_and_leaves_texts_alone(good: dict[str, Any], tmp_path: Path) -> None:
    began = time.perf_counter()
    assert json.loads(readable({"deep": deep(300)})) == {"deep": deep(300)}
    assert time.perf_counter() - began < 1
    results = Results(**{name: good[name] for name in good if name != "schema"})
    results.command = "a [  1,  2  ] and \ud800"
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json").command == results.command
    assert "[1, 2]" in readable({"a": [1, 2]})
