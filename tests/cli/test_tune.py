"""`conceptors tune`: it resumes, it is shared, and it looks at validation data only."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.words import RUN
from conceptors.cli import main

TUNE = ["tune", *RUN[1:], "--method", "sgd", "--vary", "rate=0.01:1:log", "--quiet"]


def trials(folder: Path) -> list[Any]:
    optuna = pytest.importorskip("optuna")
    from optuna.storages.journal import JournalFileBackend

    backend = JournalFileBackend(str(folder / "study.log"))
    storage = optuna.storages.JournalStorage(backend)
    found: list[Any] = optuna.load_study(study_name="disjoint-mnist/sgd", storage=storage).trials
    return found


def test_tuning_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    words = [*TUNE, "--out", str(tmp_path), "--vary", "batch=4:16", "--vary", "loss=bce,mse"]
    assert main([*words, "--trials", "2"]) == 0
    first = [t.params for t in trials(tmp_path)]
    assert len(first) == 2
    assert main([*words, "--trials", "4"]) == 0
    found = trials(tmp_path)
    assert [t.params for t in found[:2]] == first
    assert len({t.params["rate"] for t in found}) == 4  # nothing is tried twice
    out = capsys.readouterr().out
    assert main([*words, "--trials", "4"]) == 0
    again = capsys.readouterr().out
    assert len(trials(tmp_path)) == 4
    assert again in out
    best = max(found, key=lambda t: t.value)
    assert f"accuracy {best.value:.2f} %" in again
    # what is printed can be given to run
    chosen = re.findall(r"--set (\S+)", again)
    assert {c.partition("=")[0] for c in chosen} == {"rate", "batch", "loss"}
    told = [word for setting in chosen for word in ("--set", setting)]
    run = [*RUN, *told, "--method", "sgd", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(run) == 0


def test_tuning_looks_at_validation_data_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")

    def never(self: Any) -> None:
        raise AssertionError("test data used")

    monkeypatch.setattr("conceptors.experiments.methods.base.Learner.test", never)
    assert main([*TUNE, "--out", str(tmp_path), "--trials", "1"]) == 0


PROGRAM = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import conceptors.experiments.scenarios.images as images
from conceptors.cli import main
from experiments.tasks import blobs
images.load = blobs
sys.exit(main(sys.argv[2:]))
"""


def test_two_processes_share_a_study(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[1])]
    command += [*TUNE, "--out", str(tmp_path), "--trials", "12"]
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    try:
        assert [process.wait(timeout=100) for process in both] == [0, 0]
    finally:
        for process in both:
            process.kill()
    found = trials(tmp_path)
    assert 12 <= len(found) <= 13  # one may have begun when the other finished the last
    assert len({t.params["rate"] for t in found}) == len(found)
    assert all(t.state.is_finished() for t in found)


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("rate", "--vary takes NAME=LOW:HIGH"),
        ("rate=1:0.1", "needs LOW < HIGH"),
        ("rate=0:1:log", "LOW > 0 with :log"),
        ("rate=a:b", "must be floats"),
        ("batch=1.5:3", "must be ints"),
        ("rate=0.1:1:cubic", "needs LOW < HIGH"),
        ("rat=0.1:1", "did you mean 'rate'"),
        ("loss=1:2", "give choices as loss=a,b,c"),
    ],
)
def test_bad_ranges_are_refused(
    vary: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    words = ["tune", *RUN[1:], "--method", "sgd", "--out", str(tmp_path), "--vary", vary]
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_tuning_takes_one_method_and_keeps_to_its_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    words = [*TUNE, "--out", str(tmp_path), "--trials", "1"]
    assert main([*words, "--method", "cab"]) == 2
    assert "one method at a time" in capsys.readouterr().err
    assert main(words) == 0
    assert main([*words, "--set", "momentum=0.5"]) == 2
    assert "holds a search with other settings" in capsys.readouterr().err
    assert main([*words, "--minutes", "0.001", "--trials", "500"]) == 0
    assert len(trials(tmp_path)) < 20
