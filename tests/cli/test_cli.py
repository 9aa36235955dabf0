"""The command line, as a user meets it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.words import QUICK, RUN
from conceptors import __version__
from conceptors.cli import main
from conceptors.experiments.methods import METHODS, explain_settings
from conceptors.experiments.scenarios import SCENARIOS
from conceptors.experiments.scenarios.data import DataUnavailableError
from experiments.runs import read

PAPER = ["run", "disjoint-mnist", "--preset", "paper"]
ENERGY = ["--method", "cab", "--set", "energy=0.9"]

# --- help and lists ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [[], ["run"], ["tune"], ["all"], ["report"], ["explore"], ["list"], ["data"]]
)
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    assert "usage: conceptors" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"conceptors {__version__}\n"


def test_without_a_command_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "examples:" in capsys.readouterr().out


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "conceptors", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert __version__ in done.stdout


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in [*SCENARIOS, *METHODS, "paper", "best"])
    assert main(["list", "--method", "cab"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^  aperture +9\.0 +float +of the conceptors", out, re.MULTILINE)
    assert re.search(r"^  first_anchor +initial +initial\|zero +what", out, re.MULTILINE)
    for method in METHODS.values():
        assert all(
            re.search(r"\S {2,}\S.* {2}\S", s) for s in explain_settings(method.settings_type)
        )
    assert main(["list", "--method", "cba"]) == 2
    assert "did you mean 'cab'" in capsys.readouterr().err


def test_data(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert "mnist" in out
    assert "0 of 4 files here" in out
    assert main(["data", "mnits"]) == 2
    assert "did you mean 'mnist'" in capsys.readouterr().err
    asked: list[str] = []
    monkeypatch.setattr("conceptors.cli.commands.fetch", asked.append)
    assert main(["data", "mnist", "cifar100"]) == 0
    assert asked == ["mnist", "cifar100"]


def test_data_says_where_the_files_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own" / "mnist"
    own.mkdir(parents=True)
    (own / "train-images-idx3-ubyte.gz").write_bytes(b"")
    monkeypatch.setenv("CONCEPTORS_DATA", str(tmp_path / "own"))
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert f"1 of 4 files here: {own}" in out
    assert f"cache: {tmp_path / 'cache'}" in out


# --- run and report ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "word", "value"),
    [("rotated-mnist", "degrees", 10.0), ("permuted-mnist", "shuffled", 0.1)],
)
def test_how_much_tasks_differ_belongs_to_the_results(
    scenario: str, word: str, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", scenario, "--device", "cpu", *QUICK, "--tasks", "2", "--method", "sgd"]
    words += ["--quiet", "--out", str(tmp_path)]
    assert main([*words, f"--{word}", str(value)]) == 0
    assert read(tmp_path)["identity"]["options"] == {"tasks": 2, word: value}
    assert main(words) == 2
    assert f"'{word}': {value}}} there" in capsys.readouterr().err
    assert main([*words, "--degrees", "10", "--shuffled", "0.1"]) == 2


def test_run_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "with a space"
    options = ["--method", "sgd", "--method", "cab", "--method", "ewc"]
    options += ["--seeds", "2", "--first-seed", "5"]
    words = [*RUN, *options, "--set", "ewc.strength=2", "--out", str(folder)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert re.search(r"^sgd +\d+\.\d\d ± \d+\.\d\d +2 ", said.out, re.MULTILINE)
    assert re.search(r"^ewc +\d+\.\d\d ± \d+\.\d\d +2 ", said.out, re.MULTILINE)
    assert f"conceptors report '{folder}'" in said.out
    assert "settings are defaults, untuned; there is --preset paper and best" in said.out
    after = r"^ewc seed 6 task 2/2: this task \d+\.\d %, all so far \d+\.\d %$"
    assert re.search(after, said.err, re.MULTILINE)
    assert re.search(r"^ewc seed 6 task 1/2: .*, about \d+ s left$", said.err, re.MULTILINE)
    assert "step " not in said.err  # only on a terminal, or after a long silence
    found = read(folder)
    assert found["command"].startswith("conceptors run disjoint-mnist --device cpu")
    assert {r["seed"] for r in found["runs"]} == {5, 6}
    assert found["runs"][-1]["config"]["strength"] == 2.0
    assert main([*words, "--quiet"]) == 0  # all done already
    said = capsys.readouterr()
    assert said.err == ""
    assert main(["report", str(folder)]) == 0
    assert (folder / "index.html").stat().st_size > 1000
    assert list((folder / "figures").glob("projected-*.png"))
    assert capsys.readouterr().err == ""

    def offline(name: str) -> None:
        raise DataUnavailableError("no mnist here")

    monkeypatch.setattr("conceptors.report.seen.load", offline)
    assert main(["report", str(folder)]) == 0  # without these images only
    assert "without the projected images: no mnist here" in capsys.readouterr().err


def test_silence_is_broken_where_nothing_can_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conceptors.cli.progress._SILENCE", 0.0)
    assert main([*RUN, "--method", "sgd", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert re.search(r"^sgd seed 0 task 1/2: step \d+/\d+, validation .*$", said, re.MULTILINE)
    assert "\r" not in said


def test_report_without_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("altair", "vl_convert", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main([*RUN, "--method", "sgd", "--out", str(tmp_path), "--quiet"]) == 0
    assert "sgd" in capsys.readouterr().out
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pip install 'conceptors[figures]'" in said


def test_the_table_shows_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--method", "ewc", "--method", "cab", "--out", str(tmp_path), "--quiet"]
    assert main([*RUN, *words, "--preset", "paper"]) == 0
    said = capsys.readouterr()
    assert "52.72 ± 1.36 (Lee et al. 2017, cited)" in said.out
    assert "94.91 ± 0.30 (paper)" in said.out
    assert said.err == ""
    assert main([*RUN, *words, "--preset", "report"]) == 0  # the old name
    assert capsys.readouterr().err == "note: the preset 'report' is now called 'paper'\n"


def test_scenario_options(tmp_path: Path) -> None:
    words = ["--method", "sgd", "--out", str(tmp_path), "--quiet", "--tasks", "5"]
    assert main([*RUN, *words, "--class-order", "seed", "--limit", "300", "--stacked", "2"]) == 0
    found = read(tmp_path)
    assert len(found["task_names"]) == 5
    assert found["identity"]["options"] == {"tasks": 5, "limit": 300, "class_order": "seed"}


def test_progress_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main([*RUN, "--method", "sgd", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert "\r\x1b[Ksgd seed 0 task 1/2: step 8/8" in said
    assert "\r\x1b[Ksgd seed 0 task 2/2: this task" in said
    assert said.endswith("%\n\r\x1b[K")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "disjont-mnist", "--method", "sgd"], "did you mean 'disjoint-mnist'"),
        ([*RUN, "--method", "cba"], "did you mean 'cab'"),
        ([*RUN, "--method", "sgd", "--preset", "papr"], "did you mean 'paper'"),
        ([*RUN, "--method", "sgd", "--set", "rate"], "--set takes NAME=VALUE"),
        ([*RUN, "--method", "sgd", "--set", "=3"], "--set takes NAME=VALUE"),
        ([*RUN, "--method", "sgd", "--set", "rat=3"], "did you mean 'rate'"),
        ([*RUN, "--method", "sgd", "--set", "joitn.rate=3"], "did you mean 'joint'"),
        ([*RUN, "--method", "cab", "--set", "cab.apertur=3"], "did you mean 'aperture'"),
        ([*RUN, "--method", "sgd", "--set", "rate=fast"], "rate='fast' is not a float"),
        (
            [*PAPER, "--method", "sgd", "--method", "cab", "--set", "epochs=1"],
            "epochs has no effect on method 'sgd' because steps is 10000. Results would not "
            "reflect the value that you asked for. Leave epochs out, or add --set steps=0.",
        ),
        ([*RUN, "--method", "cab", "--set", "cab.epochs=1"], "because steps is 8."),
        ([*RUN, *ENERGY, "--set", "aperture=4"], "aperture has no effect on method 'cab'"),
        ([*RUN, *ENERGY, "--set", "input_aperture=4"], "because energy is 0.9."),
        (
            [*RUN, "--method", "sgd", "--set", "rate_factor=3"],
            "because patience is 0. Results would not reflect the value that you asked for. Leave "
            "rate_factor out, or add --set patience=VALUE.",
        ),
        (["tune", *PAPER[1:], "--method", "cab", "--vary", "epochs=1,2"], "because steps is 10000"),
        ([*RUN, "--method", "sgd", "--tasks", "3"], "cannot be shared evenly by 3"),
        ([*RUN, "--method", "sgd", "--device", "cuda:77"], "this machine has: cpu"),
        (
            [*RUN, "--method", "sgd", "--device", "gpu"],
            "'gpu' cannot be used; did you mean 'cuda'?",
        ),
        ([*RUN, "--method", "sgd", "--import", "no.py"], "there is no file 'no.py'"),
        ([*RUN, "--method", "sgd", "--stacked", "-1"], "stacked must be at least 0"),
    ],
)
def test_a_bad_request_ends_with_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["walk"],
        ["run"],
        [*RUN, "--out", "x"],
        [*RUN, "--method", "sgd"],
        [*RUN, "--method", "sgd", "--out", "x", "--seeds", "0"],
        [*RUN, "--method", "sgd", "--out", "x", "--seeds", "many"],
        [*RUN, "--method", "sgd", "--out", "x", "--heads", "--single-head"],
    ],
)
def test_bad_words_end_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_unusable_folders_end_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert main([*RUN, "--method", "sgd", "--out", str(tmp_path / "file")]) == 2
    assert (tmp_path / "file").read_text() == "mine"
    assert main(["report", str(tmp_path / "nothing")]) == 2
    (tmp_path / "results.json").write_text("{")
    assert main(["report", str(tmp_path)]) == 2
    assert main([*RUN, "--method", "sgd", "--out", str(tmp_path)]) == 2
    assert (tmp_path / "results.json").read_text() == "{"
    assert capsys.readouterr().err.count("conceptors: ") == 4


def test_an_interruption_says_how_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("conceptors.cli.commands.run", stop)
    assert main([*RUN, "--method", "sgd", "--out", str(tmp_path)]) == 130
    assert "the same command resumes" in capsys.readouterr().err


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


def test_an_interruption_while_torch_is_loaded() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "stopped" in done.stderr


def test_help_does_not_load_torch() -> None:
    code = "import sys, conceptors.cli.words as w; w.parser(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_report_of_nothing_names_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "nosuch"]) == 2
    assert "make one with: conceptors run" in capsys.readouterr().err
    (tmp_path / "such").mkdir()
    (tmp_path / "such" / "results.json").touch()
    assert main(["report", "nosuch"]) == 2
    said = capsys.readouterr().err
    assert said == "conceptors: no results.json in 'nosuch'; did you mean 'such'? there are: such\n"


# --- a method of one's own ---------------------------------------------------------------

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


def test_a_method_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text(OWN)
    own = ["--import", str(tmp_path / "own.py"), "--method", "slow"]
    try:
        assert main(["list", *own]) == 0
        assert re.search("factor +0.01 +float +of the gradients", capsys.readouterr().out)
        words = ["--method", "sgd", "--set", "slow.factor=0", "--quiet", "--out"]
        assert main([*RUN, *own, *words, str(tmp_path / "out")]) == 0
        rows = read(tmp_path / "out")["runs"]
        slow = next(row for row in rows if row["method"] == "slow")
        assert slow["config"]["factor"] == 0.0
        assert slow["accuracy"][0] == slow["accuracy"][1]  # the second task changed nothing
    finally:
        METHODS.pop("slow", None)
    (tmp_path / "bad.py").write_text("x = 1\nx.y\n")
    assert main(["list", "--import", str(tmp_path / "bad.py")]) == 2
    assert "bad.py, line 2: AttributeError" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = tmp_path / "logs"
    words = ["--method", "sgd", "--seeds", "2", "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*RUN, *words, "--tensorboard", str(logs)]) == 0
    for row in read(tmp_path / "out")["runs"]:
        events = EventAccumulator(str(logs / "sgd" / f"seed{row['seed']}")).Reload()
        assert {"accuracy/seen tasks", "accuracy/task 1", "accuracy/task 2"} == set(
            events.Tags()["scalars"]
        )
        first = [e.value for e in events.Scalars("accuracy/task 1")]
        assert first == pytest.approx([a[0] for a in row["accuracy"]])


def test_missing_extras_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "optuna", None)
    own = ["--method", "sgd", "--out", str(tmp_path)]
    assert main([*RUN, *own, "--tensorboard", str(tmp_path)]) == 2
    assert "pip install 'conceptors[tensorboard]'" in capsys.readouterr().err
    assert main(["tune", *RUN[1:], *own, "--vary", "rate=0.1:1"]) == 2
    assert "pip install 'conceptors[tune]'" in capsys.readouterr().err
