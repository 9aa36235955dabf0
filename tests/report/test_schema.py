"""Reading results: good files pass unchanged, bad ones are refused with the place named."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conceptors.report import check_results, read_results
from report import sample

Damage = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "results",
    [
        sample.make(1, 1, bare=True),
        sample.make(2, 3),
        sample.make(10, 1, disjoint=False),
        sample.make(100, 1, ("sgd",), disjoint=False),
    ],
    ids=["one", "two", "ten", "hundred"],
)
def test_what_is_written_is_read(results: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps(results), "utf-8")
    assert read_results(file) == results


def test_rows_may_end_at_the_diagonal() -> None:
    results = sample.make(3, 1, ("cab",), bare=True)
    rows = results["runs"][0]["accuracy"]
    results["runs"][0]["accuracy"] = [row[: i + 1] for i, row in enumerate(rows)]
    assert check_results(results) is results


def test_tasks_may_have_no_names() -> None:
    results = sample.make(2, 1, ("cab",), bare=True)
    results["task_names"] = []
    assert check_results(results) is results


def test_forgetting_may_be_undefined() -> None:
    results = sample.make(1, 1, ("cab",), bare=True)
    for entry in (results["runs"][0], results["summary"]["cab"]):
        entry["forgetting"], entry["backward_transfer"] = None, math.nan
    assert check_results(results) is results


def _set(*place: Any) -> Damage:
    """Set the value at a path; the last argument is the value."""

    def damage(results: dict[str, Any]) -> None:
        owner: Any = results
        for step in place[:-2]:
            owner = owner[step]
        owner[place[-2]] = place[-1]

    return damage


CASES: dict[str, tuple[Damage, str]] = {
    "no schema": (lambda r: r.pop("schema"), "schema is missing; this version reads schema 1"),
    "other schema": (_set("schema", 2), "schema is 2"),
    "no runs": (lambda r: r.pop("runs"), "runs is missing"),
    "empty runs": (_set("runs", []), "runs is empty"),
    "runs no list": (_set("runs", {}), "runs must be a list"),
    "run no object": (_set("runs", 1, 7), r"runs\[1\] must be an object, got 7"),
    "no method": (lambda r: r["runs"][2].pop("method"), r"runs\[2\].method is missing"),
    "seed no number": (_set("runs", 0, "seed", "0"), r"runs\[0\].seed must be a whole number"),
    "accuracy NaN": (
        _set("runs", 0, "accuracy", 1, 0, math.nan),
        r"runs\[0\].accuracy\[1\]\[0\] must be a finite number in \[0, 100\], got nan",
    ),
    "accuracy too large": (
        _set("runs", 0, "accuracy", 0, 0, 101.0),
        r"accuracy\[0\]\[0\] must .* got 101.0",
    ),
    "accuracy text": (_set("runs", 0, "accuracy", 0, 0, "98"), r"must be a number, got '98'"),
    "accuracy true": (_set("runs", 0, "accuracy", 0, 0, True), r"must be a number, got True"),
    "accuracy empty": (_set("runs", 0, "accuracy", []), r"runs\[0\].accuracy is empty"),
    "accuracy cut": (_set("runs", 0, "accuracy", 1, [97.0]), r"accuracy\[1\] has 1 values; after"),
    "a row too many": (
        lambda r: r["runs"][0]["accuracy"].append([1.0, 2.0]),
        r"accuracy has 3 rows of up to 2 columns; expected 2 rows",
    ),
    "other tasks": (
        _set("runs", 1, "accuracy", [[98.0]]),
        r"runs\[1\].accuracy is of 1 tasks where task_names has 2",
    ),
    "same run twice": (
        lambda r: r["runs"].append(copy.deepcopy(r["runs"][0])),
        r"runs\[8\] is a second run of 'cab' with seed 0",
    ),
    "seconds negative": (_set("runs", 0, "seconds", -1), "seconds must be a finite number"),
    "config a list": (_set("runs", 0, "config", [1]), "config must be an object"),
    "quota above one": (
        _set("runs", 0, "quota", "input", [0.2, 1.2]),
        r"quota\['input'\]\[1\] must be a finite number in \[0, 1\], got 1.2",
    ),
    "spectra flat": (
        _set("runs", 0, "spectra", "input", [0.1]),
        r"spectra\['input'\]\[0\] must be a list",
    ),
    "similarity not square": (_set("runs", 0, "similarity", [[1.0, 0.5]]), "must be square"),
    "summary lacks": (lambda r: r["summary"].pop("cab"), "summary lacks the method 'cab'"),
    "summary extra": (_set("summary", "gpm", {"mean": 1.0}), r"summary\['gpm'\] has no run"),
    "summary no mean": (
        lambda r: r["summary"]["cab"].pop("mean"),
        r"summary\['cab'\].mean is missing",
    ),
    "no environment": (lambda r: r.pop("environment"), "environment is missing"),
    "deviations text": (_set("deviations", "none"), "deviations must be a list"),
    "reference no mean": (_set("reference", "cab", {}), r"reference\['cab'\].mean is missing"),
    "task names": (_set("task_names", 0, 5), r"task_names\[0\] must be a text, got 5"),
}


@pytest.mark.parametrize(("damage", "message"), CASES.values(), ids=list(CASES))
def test_what_is_wrong_is_named(damage: Damage, message: str, tmp_path: Path) -> None:
    results = sample.make(2, 2)
    damage(results)
    with pytest.raises(ValueError, match=message):
        check_results(results)
    file = tmp_path / "results.json"
    file.write_text(json.dumps(results), "utf-8")
    with pytest.raises(ValueError, match=r"results\.json is not a results file of conceptors"):
        read_results(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b'{"schema": 1, "runs": [', "is not JSON .* cut short"),
        (b"\xff\xfe\x00", "is not a text file in UTF-8"),
        (b"[1, 2]", "the file must be an object"),
        (b'{"a": 1}', "schema is missing"),
        (b"[" * 100_000, "nested too deeply|is not JSON"),
    ],
)
def test_damaged_and_foreign_files(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_results(file)


def test_a_missing_file_stays_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_results(tmp_path / "results.json")


def test_long_values_are_cut_in_messages() -> None:
    results = sample.make(1, 1)
    results["runs"][0]["seed"] = "s" * 10_000
    with pytest.raises(ValueError, match="seed") as caught:
        check_results(results)
    assert len(str(caught.value)) < 200
