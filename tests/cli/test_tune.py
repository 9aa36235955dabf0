"""`conceptors tune`: it resumes, and it looks at validation data only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cli.words import RUN
from conceptors.cli import main

optuna = pytest.importorskip("optuna")
TUNE = ["tune", *RUN[1:], "--method", "sgd", "--vary", "rate=0.01:1:log", "--quiet"]


def trials(folder: Path) -> list[Any]:
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.log"))
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.load_study(study_name="disjoint-mnist/sgd", storage=storage)
    return list(study.trials)


def test_tuning_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TUNE, "--out", str(tmp_path), "--vary", "batch=4:16", "--vary", "loss=bce,mse"]
    assert main([*words, "--trials", "2"]) == 0
    first = [trial.params for trial in trials(tmp_path)]
    assert len(first) == 2
    assert main([*words, "--trials", "4"]) == 0
    both = trials(tmp_path)
    assert [trial.params for trial in both[:2]] == first
    assert len({trial.params["rate"] for trial in both}) == 4  # nothing is tried twice
    capsys.readouterr()
    assert main([*words, "--trials", "4"]) == 0
    out = capsys.readouterr().out
    assert len(trials(tmp_path)) == 4
    assert f"accuracy {max(trial.value for trial in both):.2f} %" in out
    # what is printed can be given to run
    settings = [word for text in re.findall(r"--set (\S+)", out) for word in ("--set", text)]
    assert len(settings) == 6
    run = ["run", "disjoint-mnist", "--device", "cpu", "--set", "hidden=6", "--set", "steps=8"]
    assert main([*run, *settings, "--method", "sgd", "--out", str(tmp_path / "run")]) == 0


def test_it_looks_at_validation_data_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Any) -> None:
        raise AssertionError("test data used")

    monkeypatch.setattr("conceptors.experiments.methods.base.Learner.test", never)
    words = [*TUNE, "--out", str(tmp_path), "--trials", "1", "--seeds", "2"]
    assert main([*words, "--vary", "rate=1e30,2e30"]) == 0
    assert [trial.value for trial in trials(tmp_path)] == [0.0]  # both seeds diverged


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("rate", "--vary takes NAME=LOW:HIGH"),
        ("rate=1:0.1", "LOW < HIGH"),
        ("rate=0:1:log", "LOW > 0 with :log"),
        ("batch=1.5:3", "batch is of type int"),
        ("rat=0.1:1", "did you mean 'rate'"),
        ("loss=1:2", "choices are loss=a,b,c"),
    ],
)
def test_bad_ranges_are_refused(
    vary: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", *RUN[1:], "--method", "sgd", "--out", str(tmp_path), "--vary", vary]
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_one_method_and_the_same_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TUNE, "--out", str(tmp_path), "--trials", "1"]
    assert main([*words, "--method", "cab"]) == 2
    assert "one method at a time" in capsys.readouterr().err
    assert main(words) == 0
    assert main([*words, "--set", "loss=mse"]) == 2
    assert "has a search with other settings" in capsys.readouterr().err
