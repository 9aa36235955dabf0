"""Hostile results files: `run` and `report` refuse the same ones, in one line and at once."""

import copy
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conceptors.cli import main
from conceptors.experiments.results import read_results, write_results
from experiments.tasks import blobs

WORDS = ["run", "disjoint-mnist", "--method", "sgd", "--device", "cpu", "--quiet"]
WORDS += ["--set", "hidden=6", "--set", "steps=2", "--set", "batch=8"]
Damage = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run wrote."""
    folder = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conceptors.experiments.scenarios.images.load", blobs)
        assert main([*WORDS, "--out", str(folder)]) == 0
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


def check_refused(
    content: bytes, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run` and `report` refuse a file in one short line, at once, and leave it as it is."""
    path = folder / "results.json"
    path.write_bytes(content)
    capsys.readouterr()
    for words in ([*WORDS, "--seeds", "2", "--out", str(folder)], ["report", str(folder)]):
        began = time.perf_counter()
        assert main(words) == 2
        assert time.perf_counter() - began < 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
        assert str(path) in line
        assert len(line) < 500 + len(str(path))
    assert path.read_bytes() == content


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


DAMAGES: dict[str, tuple[Damage, str]] = {
    "doubled seed": (lambda r: r["runs"].append(r["runs"][0]), "runs[1] is a second run"),
    "NaN accuracy": (lambda r: r["runs"][0].update(final_accuracy=math.nan), "not JSON compliant"),
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
    "quota of texts": (lambda r: r["runs"][0].update(quota={"x": ["x"]}), "quota['x'][0] must"),
    "deep environment": (lambda r: r.update(environment={"a": deep(500)}), "nested more than"),
    "schema true": (lambda r: r.update(schema=True), "schema must be"),
    "newer schema": (lambda r: r.update(schema=2), "schema must be"),
    "options": (lambda r: r.update(options=[]), "options must be an object"),
    "no config": (lambda r: r["runs"][0].pop("config"), "runs[0].config must be an object"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_content(
    name: str, good: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = DAMAGES[name]
    results = copy.deepcopy(good)
    damage(results)
    check_refused(json.dumps(results).encode(), message, tmp_path, capsys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("1e999", "not JSON compliant"),
        ("1" + "0" * 5000, "is not a results file"),
        ('"cut', "is not JSON"),
    ],
    ids=["lists", "objects", "float", "digits", "cut"],
)
def test_text_that_no_run_writes(
    content: str,
    message: str,
    good: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = json.dumps({**good, "more": 1}).replace('"more": 1', f'"more": {content}')
    check_refused(text.encode(), message, tmp_path, capsys)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"schema": 1}'])
def test_other_files(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(content, "", tmp_path, capsys)


def test_any_text_is_written_as_it_is(good: dict[str, Any], tmp_path: Path) -> None:
    results = {**good, "command": "a [  1,  2  ] and \ud800", "environment": {"deep": deep(40)}}
    write_results(results, tmp_path / "results.json")
    assert read_results(tmp_path / "results.json") == results
