"""`conceptors tune`: it resumes, looks at validation data only, and refuses damaged files."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conceptors.cli import main
from experiments.runs import RUN
from experiments.tasks import blobs

optuna = pytest.importorskip("optuna")
TUNE = ["tune", *RUN[1:], "--method", "sgd", "--vary", "rate=0.01:1:log", "--quiet"]


def trials(folder: Path) -> list[Any]:
    storage = f"sqlite:///{folder / 'study.db'}"
    return list(optuna.load_study(study_name="disjoint-mnist/sgd", storage=storage).trials)


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
    def validated(self: Any, count: int | None = None, part: str = "test") -> list[float]:
        assert part == "validation"
        return [50.0, 50.0]

    monkeypatch.setattr("conceptors.experiments.methods.base.Learner.test", validated)
    words = [*TUNE, "--out", str(tmp_path), "--trials", "1", "--seeds", "2"]
    assert main([*words, "--vary", "rate=1e30,2e30"]) == 0
    assert [trial.value for trial in trials(tmp_path)] == [0.0]  # both seeds diverged
    assert main([*TUNE, "--out", str(tmp_path / "good"), "--trials", "1"]) == 0
    assert [trial.value for trial in trials(tmp_path / "good")] == [50.0]


def test_a_search_keeps_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TUNE, "--out", str(tmp_path), "--trials", "1"]
    assert main(words) == 0
    assert main([*words, "--set", "loss=mse"]) == 2
    assert "has a search with other settings" in capsys.readouterr().err


def test_a_damaged_study_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--trials", "1", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    study = (tmp_path / "study.db").read_bytes()
    damages = {
        "noise": b"\xff\x00 not a study",
        "cut": study[: len(study) // 3],
        "middle": study[:4096] + b"\xff" * (len(study) - 4096),
        "header": b"X" + study[1:],
        "tables": study.replace(b"CREATE TABLE studies", b"CREATE TABLE sturdier"),
    }
    for damage, content in damages.items():
        (tmp_path / "study.db").write_bytes(content)
        assert main([*TUNE, "--trials", "2", "--out", str(tmp_path)]) == 2, damage
        (line,) = capsys.readouterr().err.splitlines()
        assert "study.db is damaged" in line
        assert (tmp_path / "study.db").read_bytes() == content, damage


SLOW = """
import sys, time
sys.path.insert(0, sys.argv[1])
import conceptors.experiments.scenarios.images as images
from conceptors.cli import main
from experiments.runs import RUN
from experiments.tasks import blobs
images.load = lambda name: print("running", flush=True) or time.sleep(600)
main(sys.argv[2:])
"""


def test_a_killed_trial_does_not_count(tmp_path: Path) -> None:
    words = [*TUNE, "--out", str(tmp_path), "--trials", "2"]
    command = [sys.executable, "-c", SLOW, str(Path(blobs.__code__.co_filename).parents[1])]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.kill()
    assert main(words) == 0
    states = [trial.state.name for trial in trials(tmp_path)]
    assert states == ["RUNNING", "COMPLETE", "COMPLETE"]
