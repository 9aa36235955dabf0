"""`conceptors all`: what is told, what is left behind, and how it ends."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conceptors.cli import main
from conceptors.experiments.all import main as as_a_module
from conceptors.experiments.benchmarks import BENCHMARKS
from conceptors.experiments.compare import Cell, How
from conceptors.experiments.step_times import StepTimes
from conceptors.report.papers_page import BEGIN, END
from experiments.runs import read
from experiments.tasks import blobs

ALL = ["all", "--device", "cpu", "--rows", "disjoint-mnist-2", "permuted-mnist-10"]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conceptors.experiments.compare.load", blobs)


def test_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all", "--list", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"^{name}: ", said, re.MULTILINE) for name in BENCHMARKS)
    assert re.search(r"^  cab +0 of 10 seeds done +own settings$", said, re.MULTILINE)
    assert re.search(r"^  joint +0 of 5 seeds done +settings that all share$", said, re.MULTILINE)
    assert "without readout on disjoint-mnist-2-deep" in said
    assert not (tmp_path / "out").exists()


def test_run_list_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    words = [*ALL, "--methods", "sgd", "joint", "--check", "--seeds", "2", "--out", out]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "[4/4] permuted-mnist-10, joint, 2 seeds" in said.err
    assert re.search(r"^joint seed 1 task 5/5: this task", said.err, re.MULTILINE)
    assert said.out == f"4 of 4 done\nresults: {out}\n"
    found = read(tmp_path / "out" / "permuted-mnist-10")
    assert found["command"] == (
        "conceptors all --check --seeds 2 --device cpu --rows permuted-mnist-10"
    )
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().err == ""

    page = tmp_path / "page.md"
    assert main([*ALL, "--page", str(page), "--out", out]) == 0
    assert capsys.readouterr().out.splitlines()[0] == str(page)
    assert "### permuted-mnist-10\n" in page.read_text("utf-8")
    assert "### disjoint-mnist-5\n" not in page.read_text("utf-8")
    assert (tmp_path / "assets" / "comparison" / "permuted-mnist-10.svg").exists()


def test_times_of_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def timed(cells: list[Cell], how: How, tell: Callable[[str], None]) -> StepTimes:
        asked.append([str(cell) for cell in cells])
        if len(asked) > 2:
            tell("without owm: out of memory")
        return StepTimes({"sgd": 1.0, "owm": 2.0}, 0.1, 10, "a machine", "2.13.0", how.command)

    monkeypatch.setattr("conceptors.cli.everything.time_steps", timed)
    words = [*ALL, "--methods", "owm", "sgd", "--steps", "--out", str(tmp_path)]
    assert main(words) == 0
    assert asked == [[f"{row}, sgd", f"{row}, owm"] for row in ALL[-2:]]
    said = capsys.readouterr()
    assert said.err == "[1/2] disjoint-mnist-2\n[2/2] permuted-mnist-10\n"
    assert "permuted-mnist-10, owm: 2.00 ×\n" in said.out
    assert said.out.endswith(f"times: {tmp_path}/*/steps.json\n")
    found = StepTimes.read(tmp_path / "permuted-mnist-10" / "steps.json")
    assert found.command == "conceptors all --steps --device cpu"
    assert main([*words, "--quiet"]) == 1
    assert capsys.readouterr().err == "without owm: out of memory\n" * 2


@pytest.mark.parametrize("word", ["--published", "--shared", "--engine ray"])
def test_steps_are_timed_alone_on_this_machine(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["all", "--steps", *word.split()]) == 2
    assert "leave --published, --shared and --engine out" in capsys.readouterr().err


def test_a_shared_machine_is_in_the_command(tmp_path: Path) -> None:
    words = [*ALL[:-1], "--methods", "sgd", "--check", "--shared", "--quiet"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    found = read(tmp_path / "disjoint-mnist-2")
    assert (
        found["command"] == "conceptors all --check --shared --device cpu --rows disjoint-mnist-2"
    )
    assert found["runs"][0]["shared"] is True


def test_protocols_of_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, out = "gpm-permuted-mnist-10-deep", str(tmp_path / "out")
    words = ["all", "--published", "--rows", name, "--device", "cpu", "--out", out]
    assert main([*words, "--list"]) == 0
    assert re.search(r"^  gpm +0 of 5 seeds done +own settings$", capsys.readouterr().out, re.M)
    assert main([*words, "--check", "--quiet"]) == 0
    assert capsys.readouterr().out == f"1 of 1 done\nresults: {out}\n"
    command = read(tmp_path / "out" / name)["command"]
    assert command == f"conceptors all --published --check --device cpu --rows {name}"

    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    shown = ["all", "--published", "--page", str(page), "--out", str(tmp_path / "none")]
    assert main(shown) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "| gpm | permuted-mnist, 10 tasks |" in page.read_text("utf-8")
    assert main([*shown, "--rows", name]) == 2
    assert "leave --rows out" in capsys.readouterr().err


def test_a_check_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--rows", "disjoint-mnist-2", "--methods", "sgd", "--device", "cpu", "--check"]
    assert as_a_module(words) == 0
    assert capsys.readouterr().out == "1 of 1 done\n"
    assert not list(tmp_path.iterdir())


def test_a_failure_is_told_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, number: int) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr("conceptors.experiments.methods.joint.Joint.steps", fail)
    words = [*ALL, "--methods", "joint", "sgd", "--check", "--out", str(tmp_path)]
    assert main([*words, "--quiet"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("2 of 4 done\n")
    assert said.err == (
        "failed: disjoint-mnist-2, joint: RuntimeError: no more\n"
        "failed: permuted-mnist-10, joint: RuntimeError: no more\n"
    )


def test_an_interruption_says_how_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("conceptors.experiments.compare.run", stop)
    assert main([*ALL, "--methods", "sgd", "--check", "--out", str(tmp_path)]) == 130
    assert "the same command resumes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "disjoint-mnits-2"], "did you mean 'disjoint-mnist-2'"),
        (["--methods", "cba"], "did you mean 'cab'"),
        (["--device", "cuda:77"], "this machine has: cpu"),
    ],
)
def test_bad_words_end_with_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["all", *words, "--quiet", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_page_needs_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    assert main(["all", "--page", str(tmp_path / "page.md"), "--out", str(tmp_path)]) == 2
    assert "pip install 'conceptors[figures]'" in capsys.readouterr().err
