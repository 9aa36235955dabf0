"""The performance suite and its command: that they run; how fast anything is, is not tested."""

from __future__ import annotations

import json
import math
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from conceptors.bench import (
    BENCHMARKS,
    Row,
    choose,
    find_device,
    read,
    run_suite,
)
from conceptors.bench.plot import plot_growth
from conceptors.bench.row import Benchmark, UnfitError
from conceptors.bench.table import table
from conceptors.cli import main

CPU = torch.device("cpu")


# --- every benchmark ---------------------------------------------------------------------


@cache
def at_tiny_size(name: str) -> list[Row]:
    return BENCHMARKS[name].run("tiny", CPU)


OWN_FILES = ("untuned", "body")


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in OWN_FILES])
def test_every_benchmark_runs_at_tiny_size(name: str) -> None:
    rows = at_tiny_size(name)
    assert rows
    for row in rows:
        assert row.what == name
        assert row.setting
        assert row.ours is not None
        # differences of tiny times may have any sign
        if name != "family" and "factoring" not in row.setting:
            assert row.ours > 0
            least = 0 if name == "regularization" else 1e-12  # points lost, which may be none
            assert row.ratio is None or least <= row.ratio < math.inf
        assert row.met is None, "targets are for real sizes"
        json.dumps(row.plain_dict(), allow_nan=False)
        if name.startswith(("step", "layer")):
            assert row.floor is not None
            assert row.drift is not None
            assert row.drift_plain is not None
            assert row.floor > 0
            assert 0 <= row.drift < row.drift_plain, "the shield protects"
    assert len(table(rows).splitlines()) == len(rows) + 2


def test_stacked_seeds_learn_what_single_ones_do() -> None:
    row = at_tiny_size("seeds")[0]
    assert row.notes["largest_difference_of_accuracy_percent"] < 1e-3


# --- the suite ---------------------------------------------------------------------------


def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick ones in place of all benchmarks, of which one fails and one is not for here."""

    def fine(size: Any, device: Any) -> list[Row]:
        return [Row("fine", size, plain=1.0, ours=2.0, ratio=2.0, target=1.5)]

    def broken(size: Any, device: Any) -> list[Row]:
        raise RuntimeError("out of luck")

    def unfit(size: Any, device: Any) -> list[Row]:
        raise UnfitError("no data")

    def strange(size: Any, device: Any) -> list[Row]:
        return [Row("strange", size, ours=math.nan, ratio=math.inf, notes={"x": [math.nan, 1.0]})]

    for name in list(BENCHMARKS):
        monkeypatch.delitem(BENCHMARKS, name)
    for run in (fine, broken, unfit, strange):
        name = run.__name__
        monkeypatch.setitem(BENCHMARKS, name, Benchmark(name, f"about {name}", run))


def test_one_that_fails_is_noted_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(monkeypatch)
    said: list[str] = []
    outcome = run_suite([], "tiny", CPU, folder=tmp_path / "new", progress=said.append)
    assert [row.what for row in outcome.rows] == ["fine", "strange"]
    assert set(outcome.failed) == {"broken"}
    assert "RuntimeError: out of luck (test_suite.py:" in outcome.failed["broken"]
    assert outcome.left_out == {"unfit": "no data"}
    assert "1/4 fine: about fine" in said
    found = read(tmp_path / "new" / "cpu.json")
    assert [row["what"] for row in found["rows"]] == ["fine", "strange"]
    assert found["rows"][0]["met"] is False
    assert found["rows"][1]["ratio"] is None
    assert found["rows"][1]["notes"] == {"x": [None, 1.0]}
    assert found["machine"]["torch"] == torch.__version__
    assert found["ceilings"]["float32"] > 0
    text = (tmp_path / "new" / "cpu.md").read_text(encoding="utf-8")
    assert "| fine " in text
    assert "MISSED" in text
    assert "FAILED: broken" in text
    assert "not measured: unfit: no data" in text


def test_what_is_finished_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins(monkeypatch)

    def killed(size: Any, device: Any) -> list[Row]:
        raise KeyboardInterrupt

    monkeypatch.setitem(BENCHMARKS, "broken", Benchmark("broken", "", killed))
    with pytest.raises(KeyboardInterrupt):
        run_suite([], "tiny", CPU, folder=tmp_path)
    assert [row["what"] for row in read(tmp_path / "cpu.json")["rows"]] == ["fine"]


def test_names_and_devices_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="did you mean 'step-mlp'"):
        choose(["step-mpl"], CPU)
    with pytest.raises(ValueError, match="device 'tpu' cannot be used"):
        find_device("tpu")
    with pytest.raises(ValueError, match="benchmarks run on cpu or cuda"):
        find_device("meta")
    with pytest.raises(ValueError, match="size must be one of tiny, quick, full"):
        run_suite([], "huge", CPU)  # type: ignore[arg-type]
    assert choose(["tasks", "tasks"], CPU) == ["tasks"]
    assert "permuted" not in choose([], CPU)
    assert "step-mlp" not in choose([], torch.device("cuda"))


def test_a_file_that_is_no_result(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"schema": 9}'):
        (tmp_path / "cpu.json").write_text(text)
        with pytest.raises(ValueError, match="holds no results of benchmarks"):
            read(tmp_path / "cpu.json")


def test_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"plain": 10, "ours": 11}
    rows = [
        Row(
            "growth",
            f"{curve} {value}",
            ratio=1.0 + value / 10,
            notes={"curve": curve, "value": value, "ratio_quartiles": [1.0, 2.0]}
            | {"peak_bytes": peaks if curve == "width" else None},
        )
        for curve, values in {
            "width": [1, 2],
            "rank": [1],
            "batch": [1, 4],
            "tasks": [1, 2],
        }.items()
        for value in values
    ]
    stand_ins(monkeypatch)
    monkeypatch.setitem(BENCHMARKS, "fine", Benchmark("fine", "", lambda size, device: rows))
    run_suite(["fine", "strange"], "tiny", CPU, folder=tmp_path)
    picture = plot_growth(tmp_path / "cpu.json", tmp_path / "growth.svg")
    text = picture.read_text(encoding="utf-8")
    assert "<svg" in text
    assert "tasks remembered" in text
    with pytest.raises(ValueError, match=r"must end in one of \.svg"):
        plot_growth(tmp_path / "cpu.json", tmp_path / "growth.txt")
    run_suite(["strange"], "tiny", CPU, folder=tmp_path)
    with pytest.raises(ValueError, match="holds no growth curves"):
        plot_growth(tmp_path / "cpu.json", picture)
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ImportError, match="need altair, which is not installed"):
        plot_growth(tmp_path / "cpu.json", picture)


# --- the command -------------------------------------------------------------------------


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "usage: conceptors bench" in out
    assert "examples:" in out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in BENCHMARKS)


def test_the_command_prints_a_table_and_writes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_ins(monkeypatch)
    line = ["bench", "fine", "--size", "tiny", "--device", "cpu", "--out", str(tmp_path)]
    assert main(line) == 0
    said = capsys.readouterr()
    assert f"torch {torch.__version__}" in said.out
    assert "conceptors bench fine --size tiny" in said.out
    assert "| fine " in said.out
    assert "1/1 fine" in said.err
    assert read(tmp_path / "cpu.json")["command"].startswith("conceptors bench fine")
    assert main(["bench", "fine", "broken", "--device", "cpu"]) == 1
    capsys.readouterr()
    assert main(["bench", "fines", "--device", "cpu"]) == 2
    assert "did you mean 'fine'" in capsys.readouterr().err
