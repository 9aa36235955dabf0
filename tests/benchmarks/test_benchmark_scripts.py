"""Every benchmark runs at tiny size, resumes, and prints the docs' table from results/."""

import csv
import doctest
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

common = pytest.importorskip("benchmarks.common", reason="no benchmarks beside the tests")
Table = common.Table

ROOT = Path(__file__).parents[2]


def main(name: str, *arguments: str) -> int:
    result: int = importlib.import_module(f"benchmarks.{name}").main(list(arguments))
    return result


@pytest.mark.parametrize(
    ("name", "arguments", "excerpt"),
    [
        ("comparison", (), "| cab | 97.46 ± 0.08 |"),
        ("cost", (), "GPT-2 small"),
        ("finetuning", (), "energy=0.95 | rise ≤ 0.05 | 57.5 ± 9.0 | 0.021 ± 0.002 |"),
        ("paper", ("ablation",), "| disjoint-mnist | soft conceptors | 89.27 ± 1.64 |"),
        ("paper", ("similarity",), "| 4 | 0.303 ± 0.008 | 0.9389 |"),
        ("pretrained", (), "| shield | 93.84 ± 0.05 |"),
        ("readout", (), "**55.24 ± 0.06** |"),
        ("untuned", (), "| digits 2x5 | 48.9 ± 0.0 | 95.4 ± 0.0 |"),
    ],
)
def test_the_tables_of_the_docs_come_from_results(
    name: str,
    arguments: tuple[str, ...],
    excerpt: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(name, *arguments, "--table") == 0
    assert excerpt in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "arguments", "key", "rows"),
    [
        (
            "untuned",
            ("--methods", "plain", "shield", "shield share=0.95", "readout", "joint", "replay 20"),
            "curves",
            12,
        ),
        ("pretrained", (), "one_head", 8),
        ("cost", ("--networks", "mlp", "layer-8b"), "ratio", 18),
        ("finetuning", ("--skills", "banking77"), "test_exact", 14),
    ],
)
def test_a_tiny_run_writes_a_table_and_resumes(
    name: str, arguments: tuple[str, ...], key: str, rows: int, tmp_path: Path, monkeypatch: Any
) -> None:
    out = tmp_path / "runs.csv"
    if name == "finetuning":
        pytest.importorskip("peft")
    command = ("--tiny", "--device", "cpu", "--seeds", "1", "--out", str(out), *arguments)
    assert main(name, *command) == 0
    module = importlib.import_module(f"benchmarks.{name}")
    table = Table(out, module.KEY)
    assert len(table.rows) == rows
    assert all(row[key] != "" and row["torch"] for row in table.rows)

    monkeypatch.setattr(Table, "add", lambda *_: pytest.fail("a finished run was repeated"))
    assert main(name, *command) == 0


@pytest.fixture(autouse=True)
def commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.common._commit", lambda: "0123456789ab")


class Runs:
    """In place of `conceptors run`: writes results.json, except for methods that crash."""

    def __init__(self, crashing: str = "") -> None:
        self.crashing, self.commands = crashing, list[list[str]]()

    def __call__(self, command: list[str], **_: Any) -> SimpleNamespace:
        self.commands.append(command)
        method, seed = (command[command.index(o) + 1] for o in ("--method", "--first-seed"))
        if method == self.crashing:
            return SimpleNamespace(returncode=1, stderr="out of memory")
        entry = {"method": method, "seed": int(seed)}
        done = {"accuracy": [[99.0, 0.0], [80.0, 90.0]], "final_accuracy": 85.0, "seconds": 1.5}
        done |= {"forgetting": 19.0, "config": {"rate": 0.4}}
        failed = [entry | {"reason": "diverged in task 2"}] if method == "sgd" else []
        results = {"runs": [] if failed else [entry | done], "failed": failed}
        out = Path(command[command.index("--out") + 1])
        out.mkdir(parents=True)
        (out / "results.json").write_text(json.dumps(results), encoding="utf-8")
        return SimpleNamespace(returncode=0, stderr="")


def test_a_comparison_runs_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, runs = tmp_path / "runs.csv", Runs(crashing="joint")
    monkeypatch.setattr("benchmarks.runs.subprocess.run", runs)
    command = ["--device", "cpu", "--seeds", "2", "--out", str(out)]
    command += ["--benchmarks", "disjoint-mnist-2", "--methods", "sgd", "cab", "joint"]
    assert main("comparison", *command) == 1  # joint crashed
    assert "| cab | **85.00 ± 0.00** (n = 2) |" in capsys.readouterr().out
    table = Table(out, ("benchmark", "method", "seed"))
    assert [(row["method"], row["seed"]) for row in table.rows] == [
        *(("sgd", "0"), ("cab", "0"), ("sgd", "1"), ("cab", "1"))
    ]
    diverged, finished = table.rows[:2]
    assert (diverged["accuracy"], diverged["failed"]) == ("", "diverged in task 2")
    assert finished["settings"] == "rate=0.4"
    assert finished["final_accuracies"] == "80 90"
    assert float(finished["learned"]) == 94.5
    assert finished["command"] == (
        "conceptors run disjoint-mnist --method cab --tasks 2 --preset best --set=cab.hidden=800 "
        "--first-seed 0 --seeds 1 --device cpu"
    )
    assert main("comparison", *command) == 1
    assert [c[c.index("--method") + 1] for c in runs.commands[6:]] == ["joint", "joint"]


def test_the_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(common).failed == 0


def test_every_committed_table_is_read() -> None:
    for path in (ROOT / "results").glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert rows, path
        assert all(None not in row and None not in row.values() for row in rows), path
