"""`--engine`: words that go together, failures that are told, and a grid without optuna."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.words import RUN
from conceptors.cli import main
from conceptors.experiments.engines import Finished, Local

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--address", "here:1"], "--address goes with --engine ray, not local"),
        (["--cpus-per-run", "2"], "--cpus-per-run goes with --engine ray or slurm, not local"),
        (["--engine", "ray", "--runs-per-job", "2"], "--runs-per-job goes with --engine slurm"),
    ],
)
def test_words_that_do_not_go_together(
    words: list[str], message: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main([*RUN, "--method", "sgd", "--out", str(tmp_path / "new"), *words]) == 2
    assert message in capsys.readouterr().err
    assert main(["all", "--check", "--rows", "disjoint-mnist-2", "--methods", "sgd", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("engine", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_what_is_not_installed_is_told(
    engine: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(f"conceptors.experiments.engines.{engine}.find_spec", lambda name: None)
    out = str(tmp_path / "new")
    assert main([*RUN, "--method", "sgd", "--out", out, "--engine", engine]) == 2
    assert f"pip install 'conceptors[{module}]'" in capsys.readouterr().err


def test_slurm_takes_options_as_pairs(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("submitit")
    words = [*RUN, "--method", "sgd", "--out", str(tmp_path), "--engine", "slurm"]
    assert main([*words, "--slurm", "partition"]) == 2
    assert "--slurm takes NAME=VALUE, got 'partition'" in capsys.readouterr().err
    assert main([*words, "--gpus-per-run", "0.5"]) == 2
    assert "Slurm gives whole GPUs" in capsys.readouterr().err


class Half(Local):
    """The first job is done, the others fail."""

    def work(self, jobs: Any, progress: Any) -> Any:
        for number, job in enumerate(jobs):
            if number:
                yield Finished(number, failure=f"Traceback\nMemoryError: {job}")
            else:
                yield Finished(number, job(progress))


def test_failures_are_told_and_the_rest_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("conceptors.cli.commands.chosen_engine", lambda *_: Half())
    words = [*RUN, "--method", "sgd", "--seeds", "2", "--quiet", "--out"]
    assert main([*words, str(tmp_path / "run")]) == 1
    said = capsys.readouterr()
    assert re.search(r"^sgd +\d", said.out, re.M)
    assert "failed: disjoint-mnist, sgd seed 1\nTraceback\nMemoryError" in said.err
    assert said.err.endswith("1 failed; the rest is done, and the same command tries them again\n")
    tune = ["tune", *RUN[1:], "--method", "sgd", "--grid", "--vary", "rate=0.1,1", "--quiet"]
    assert main([*tune, "--out", str(tmp_path / "tune")]) == 1
    said = capsys.readouterr()
    assert "--set rate=0.1" in said.out
    assert "failed: rate=1.0\nTraceback" in said.err


def test_a_grid_needs_no_optuna(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    tune = ["tune", *RUN[1:], "--method", "sgd", "--out", str(tmp_path), "--quiet"]
    tune += ["--vary", "rate=0.01,0.5", "--vary", "loss=bce,mse"]
    assert main(tune) == 2
    assert "--grid does without it" in capsys.readouterr().err
    assert main([*tune, "--grid"]) == 0
    said = capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    best = max(rows, key=lambda row: float(row["validation"]))
    assert f"accuracy {best['validation']:.2f} %" in said
    assert f"--set rate={best['settings']['rate']:g}" in said
    assert main([*tune, "--grid", "--minutes", "3"]) == 2
    assert "leave --minutes and --at-once out" in capsys.readouterr().err
