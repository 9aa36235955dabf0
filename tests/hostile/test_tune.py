"""Tuning: damaged journals, and a process that dies in the midst of a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conceptors.cli import main
from experiments.tasks import blobs

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.usefixtures("fake")

TUNE = ["tune", "disjoint-mnist", "--device", "cpu", "--method", "sgd", "--vary", "rate=0.01:1:log"]
TUNE += ["--quiet", "--set", "hidden=6", "--set", "steps=4", "--set", "batch=8"]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conceptors.experiments.scenarios.images.load", blobs)
        assert main([*TUNE, "--trials", "1", "--out", str(folder)]) == 0
    return (folder / "study.log").read_bytes()


def test_a_damaged_journal_is_refused(
    journal: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{**json.loads(line), "op_code": 99} for line in journal.splitlines()]
    damages = {
        "noise": b"\xff\x00 not a journal\n",
        "cut": journal[:-7],
        "middle": journal.replace(b"{", b"", 1),
        "deep": journal + b"[" * 100_000 + b"\n",
        "operation": b"".join(json.dumps(line).encode() + b"\n" for line in lines),
        "no operation": journal + b"{}\n",
        "text": b'"text"\n',
    }
    for damage, content in damages.items():
        (tmp_path / "study.log").write_bytes(content)
        assert main([*TUNE, "--trials", "2", "--out", str(tmp_path)]) == 2, damage
        (line,) = capsys.readouterr().err.splitlines()
        assert "study.log is damaged" in line
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
