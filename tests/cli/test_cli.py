"""The command line, as a user meets it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from conceptors import Shield, __version__
from conceptors.cli import main
from conceptors.experiments.methods import METHODS
from conceptors.experiments.scenarios.images import SCENARIOS
from experiments.runs import QUICK, RUN, read

Capture = pytest.CaptureFixture[str]
TUNE = ["tune", *RUN[1:], "--method", "sgd"]


def test_as_a_module_without_a_command(capsys: Capture) -> None:
    command = [sys.executable, "-m", "conceptors", "--version"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout == f"conceptors {__version__}\n"
    assert main([]) == 2
    assert "examples:" in capsys.readouterr().out
    code = "import sys, conceptors.cli.words as w; w.parser(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_list(capsys: Capture) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in [*SCENARIOS, *METHODS, "paper", "best"])
    for method in METHODS:
        assert main(["list", "--method", method]) == 0
        lines = capsys.readouterr().out.splitlines()[4:]
        assert all(re.search(r"\S {2,}\S.* {2}\S", line) for line in lines)
    assert main(["list", "--method", "cba"]) == 2
    assert "did you mean 'cab'" in capsys.readouterr().err


def test_data(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "own" / "mnist"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"")
    monkeypatch.setenv("CONCEPTORS_DATA", str(tmp_path / "own"))
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert f"1 of 4 files here: {folder}" in out
    assert f"cache: {tmp_path / 'cache'}" in out
    assert main(["data", "mnits"]) == 2
    assert "did you mean 'mnist'" in capsys.readouterr().err
    asked: list[str] = []
    monkeypatch.setattr("conceptors.cli.commands.fetch", asked.append)
    assert main(["data", "mnist", "cifar100"]) == 0
    assert asked == ["mnist", "cifar100"]


def test_run_and_report(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with a space"
    options = ["--method", "sgd", "--method", "cab", "--method", "ewc", "--seeds", "2"]
    options += ["--first-seed", "5", "--tasks", "5", "--limit", "300"]
    words = [*RUN, *options, "--set", "ewc.strength=2", "--out", str(folder)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert re.search(r"^sgd +\d+\.\d\d ± \d+\.\d\d +2 ", said.out, re.MULTILINE)
    assert f"conceptors report '{folder}'" in said.out
    assert re.search(r"^ewc, seed 6, task 1 of 5: .* on this task$", said.err, re.M)
    assert "step " not in said.err  # only on a terminal, or after a long silence
    results = read(folder)
    assert results["command"].startswith("conceptors run disjoint-mnist --device cpu")
    assert {run["seed"] for run in results["runs"]} == {5, 6}
    assert results["runs"][-1]["config"]["strength"] == 2.0
    assert results["options"] == {"tasks": 5, "limit": 300}
    assert main(["report", str(folder)]) == 0
    assert (folder / "index.html").stat().st_size > 1000
    assert capsys.readouterr().err == ""
    assert main(["report", str(folder / "results.json")]) == 0


def test_progress(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*RUN, "--method", "sgd", "--out"]
    with monkeypatch.context() as patience:
        patience.setattr("conceptors.cli.progress._SILENCE", 0.0)
        assert main([*words, str(tmp_path / "file")]) == 0
    said = capsys.readouterr().err
    assert re.search(r"^sgd, seed 0, task 1 of 2: step \d+ of \d+, .* on validation", said, re.M)
    assert "\r" not in said
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main([*words, str(tmp_path / "terminal")]) == 0
    said = capsys.readouterr().err
    assert "\r\x1b[Ksgd, seed 0, task 1 of 2: step 8 of 8" in said
    assert said.endswith("so far\n\r\x1b[K")
    assert main([*words, str(tmp_path / "quiet"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_explore(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    file, page = tmp_path / "my.safetensors", tmp_path / "page.html"
    words = ["explore", "--shield", str(file), "--out", str(page)]
    assert main(words) == 2
    assert "my.safetensors'; shield.save(FILE) writes one" in capsys.readouterr().err
    shield = Shield(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)))
    shield.remember(torch.randn(30, 5))
    shield.save(file)
    assert main([*words, "--open"]) == 0
    assert opened == [page.as_uri()]
    assert "this machine has no browser" in capsys.readouterr().err
    assert "1 task is remembered in 2 layers" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "disjont-mnist", "--method", "sgd"], "did you mean 'disjoint-mnist'"),
        ([*RUN, "--method", "cba"], "load your own with --import FILE.py"),
        ([*RUN, "--method", "sgd", "--set", "rate"], "--set takes NAME=VALUE"),
        ([*TUNE, "--vary", "rate=1-9", "--trials", "1"], "rate='1-9' is not of type float"),
        ([*RUN, "--method", "sgd", "--set", "cab.aperture=3"], "not among the methods of this run"),
        ([*RUN, "--method", "sgd", "--tasks", "3"], "cannot be shared evenly by 3"),
        ([*RUN, "--method", "sgd", "--device", "gpu"], "did you mean 'cuda'?"),
        ([*RUN, "--method", "sgd", "--import", "no.py"], "there is no file 'no.py'"),
        ([*RUN, "--method", "sgd", "--address", "a:1"], "--address needs --engine ray"),
        ([*TUNE, "--vary", "rate"], "--vary takes NAME=LOW:HIGH"),
        ([*TUNE, "--vary", "rate=1:0.1"], "two numbers, LOW < HIGH"),
        ([*TUNE, "--vary", "rate=0:1:log"], "LOW > 0 with :log"),
        ([*TUNE, "--vary", "batch=1.5:3"], "batch is of type int"),
        ([*TUNE, "--vary", "loss=1:2"], "choices are loss=a,b,c"),
        ([*TUNE, "--vary", "rate=0.1:1", "--method", "cab"], "one method at a time"),
    ],
)
def test_bad_requests(words: list[str], message: str, tmp_path: Path, capsys: Capture) -> None:
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said
    assert not (tmp_path / "out" / "results.json").exists()


def test_missing_extras(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conceptors.experiments.tune.find_spec", lambda name: None)
    monkeypatch.setattr("conceptors.experiments.engines.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "altair", None)
    words = [*RUN[1:], "--method", "sgd", "--out", str(tmp_path)]
    for command, extra in (
        (["tune", *words, "--vary", "rate=0.1:1"], "tune"),
        (["run", *words, "--engine", "ray"], "ray"),
        (["report", str(tmp_path)], "figures"),
    ):
        assert main(command) == 2
        assert f"pip install 'conceptors[{extra}]'" in capsys.readouterr().err


def test_a_report_of_nothing_names_the_remedy(tmp_path: Path, capsys: Capture) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "create it with: conceptors run" in capsys.readouterr().err


def test_seeds_that_diverge_are_named(tmp_path: Path, capsys: Capture) -> None:
    out = ["--seeds", "2", "--quiet", "--out", str(tmp_path)]
    assert main([*RUN, "--method", "sgd", "--method", "cab", "--set", "cab.rate=1e30", *out]) == 1
    said = capsys.readouterr()
    assert "sgd" in said.out
    lines = said.err.splitlines()
    assert lines[:2] == [f"cab seed {seed} diverged in task 1 of 2" for seed in (0, 1)]
    assert "set a lower rate" in lines[2]
    assert main(["report", str(tmp_path)]) == 0


INTERRUPTED = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs of the background

class AtTorch:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, AtTorch())
from conceptors.cli import main
sys.exit(main(["run", "disjoint-mnist", "--method", "sgd", "--out", "never"]))
"""


def test_an_interruption_says_how_to_resume() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 130
    assert process.stderr == "\nstopped; finished seeds are kept, and the same command resumes\n"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
@pytest.mark.parametrize("errors", [False, True])
def test_a_closed_pipe_ends_a_command_quietly(errors: bool) -> None:
    """As in `conceptors list | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "conceptors", "list"]
    with subprocess.Popen(
        command, stdout=writing, stderr=writing if errors else subprocess.PIPE, text=True
    ) as process:
        os.close(writing)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said or "") == (141, "")


OWN = """from dataclasses import dataclass
from conceptors.methods import Learner, Settings, add, setting

@dataclass(frozen=True)
class SlowSettings(Settings):
    factor: float = setting(0.01, "of the gradients of later tasks")

@add
class Slow(Learner):
    name, about, settings_type = "slow", "learns later tasks slowly", SlowSettings

    def gradients(self, number):
        for parameter in self.model.parameters():
            if number and parameter.grad is not None:
                parameter.grad *= self.settings.factor
"""


def test_ones_own_method(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "own.py").write_text(OWN)
    own = ["--import", str(tmp_path / "own.py"), "--method", "slow"]
    try:
        assert main(["list", *own]) == 0
        assert re.search("factor +0.01 +float +of the gradients", capsys.readouterr().out)
        words = ["--set", "slow.factor=0", "--quiet", "--out", str(tmp_path / "out")]
        assert main(["run", "disjoint-mnist", "--device", "cpu", *QUICK, *own, *words]) == 0
        (slow,) = read(tmp_path / "out")["runs"]
        assert slow["accuracy"][0] == slow["accuracy"][1]  # the second task changed nothing
    finally:
        METHODS.pop("slow", None)
    (tmp_path / "bad.py").write_text("x = 1\nx.y\n")
    with pytest.raises(AttributeError, match="'int' object has no attribute 'y'"):
        main(["list", "--import", str(tmp_path / "bad.py")])
