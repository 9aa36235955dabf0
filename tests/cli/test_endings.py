"""How commands end: with failures that are named, and quietly when nobody reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.words import RUN
from conceptors.cli import main
from experiments.runs import read


def cut_short(*words: str, errors: bool = False) -> tuple[int, str]:
    """Exit code and complaints of a command whose output nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "conceptors", *words]
    with subprocess.Popen(
        command, stdout=writing, stderr=writing if errors else subprocess.PIPE, text=True
    ) as process:
        os.close(writing)
        _, told = process.communicate(timeout=120)
    return process.returncode, told or ""


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_a_command_quietly(
    unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `conceptors list | head -1`: found at the first line, or when Python ends."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    assert cut_short("list") == (141, "")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
def test_also_where_errors_go_the_same_way_and_for_help() -> None:
    assert cut_short("list", errors=True) == (141, "")
    code, told = cut_short("--help")
    assert code in (0, 141)  # argparse forgives what it sees at once
    assert not told


def test_another_broken_pipe_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such as that of a cluster which is gone."""

    def lost(name: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("conceptors.cli.commands.fetch", lost)
    assert main(["data", "mnist"]) == 2
    assert capfd.readouterr().err == "conceptors: [Errno 32] Broken pipe\n"


def test_seeds_that_diverge_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--seeds", "2", "--quiet", "--out", str(tmp_path)]
    words = [*RUN, "--method", "sgd", "--method", "ewc", "--set", "ewc.rate=1e30", *out]
    assert main(words) == 1
    told = capsys.readouterr()
    assert "sgd" in told.out
    (line,) = told.err.splitlines()
    assert line.startswith("failed: ewc seed 0 diverged in task 1 of 2; ewc seed 1 diverged in")
    assert "--retry" in line
    before = read(tmp_path)
    assert [run["method"] for run in before["runs"]] == ["sgd", "sgd"]
    assert main(words) == 1  # not tried again, and yet told
    assert capsys.readouterr().err == told.err
    assert read(tmp_path) == before
    assert main([*words, "--retry"]) == 1
    assert main([*RUN, "--method", "sgd", *out]) == 0  # the others are fine
    assert main(["report", str(tmp_path)]) == 0


def test_where_all_seeds_diverge_there_is_nothing_to_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*RUN, "--method", "sgd", "--set", "rate=1e30", "--out", str(tmp_path), "--quiet"]
    assert main(words) == 1
    assert not capsys.readouterr().out
    assert main(["report", str(tmp_path)]) == 2
    assert "runs is empty: sgd seed 0 diverged in task 1 of 2" in capsys.readouterr().err
