"""Tuning: impossible times, damaged journals, and a process that dies in the midst of a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conceptors.cli import main
from experiments.tasks import blobs

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.usefixtures("fake")

TUNE = ["tune", "disjoint-mnist", "--device", "cpu", "--method", "sgd", "--vary", "rate=0.01:1:log"]
TUNE += ["--quiet", "--set", "hidden=6", "--set", "steps=4", "--set", "batch=8"]


@pytest.mark.parametrize("minutes", ["-1", "nan", "inf"])
def test_impossible_times(minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, f"--minutes={minutes}", "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert f"--minutes must be a finite number above 0, got {minutes}" in said
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conceptors.experiments.scenarios.images.load", blobs)
        assert main([*TUNE, "--trials", "1", "--out", str(folder)]) == 0
    return (folder / "study.log").read_bytes()


def entries(journal: bytes, **changes: Any) -> bytes:
    lines = [{**json.loads(line), **changes} for line in journal.splitlines()]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.mark.parametrize(
    "damage", ["noise", "cut", "middle", "list", "deep", "operation", "no operation", "text"]
)
def test_a_damaged_journal_is_refused(
    damage: str, journal: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {
        "noise": b"\xff\x00 not a journal\n",
        "cut": journal[:-7],
        "middle": journal.replace(b"{", b"", 1),
        "list": journal + b"[1]\n",
        "deep": journal + b"[" * 100_000 + b"\n",
        "operation": entries(journal, op_code=99),
        "no operation": journal + b"{}\n",
        "text": b'"text"\n',
    }[damage]
    (tmp_path / "study.log").write_bytes(content)
    assert main([*TUNE, "--trials", "2", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "study.log is damaged" in said
    assert said.count("\n") == 1
    assert (tmp_path / "study.log").read_bytes().startswith(content)


SLOW = """
import sys, time
sys.path.insert(0, sys.argv[1])
import conceptors.experiments.scenarios.images as images
from conceptors.cli import main
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
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.load_study(study_name="disjoint-mnist/sgd", storage=storage)
    assert [t.state.name for t in study.trials] == ["RUNNING", "COMPLETE", "COMPLETE"]
