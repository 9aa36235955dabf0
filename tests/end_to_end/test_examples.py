"""The examples, run as a user would, and what they print."""

import os
import re
import runpy
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are in the checkout")


def run(name: str, *launcher: str, warnings: str = "error") -> str:
    """What an example prints; its warnings are errors, unless it is launched."""
    pytest.importorskip("sklearn")
    environment = {**os.environ, "PYTHONWARNINGS": warnings, "PYTHONIOENCODING": "utf-8"}
    if launcher:
        environment |= {"PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / name)],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        env=environment,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "Exception ignored" not in process.stderr
    return process.stdout


def numbers(text: str, start: str) -> list[float]:
    """The numbers on the line that starts so, the last if there are several."""
    lines = [line for line in text.splitlines() if line.startswith(start)]
    assert lines, f"no line starts with {start!r} in:\n{text}"
    matches = re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]\d+)?", lines[-1].removeprefix(start))
    return [float(number) for number in matches]


RANGES: dict[str, dict[str, list[tuple[int, int]]]] = {  # of the accuracies on a line
    "your_own_loop.py": {
        "without a shield": [(0, 20), (90, 100)],
        "with a shield": [(85, 100), (88, 100)],
    },
    "transformer_adamw.py": {
        "without a shield": [(95, 100), (0, 55), (90, 100)],
        "with a shield": [(95, 100), (94, 100), (85, 100)],
    },
    "tour.py": {
        "   no conceptor": [(0, 20), (90, 100)],
        "   paper, simplified": [(90, 100), (90, 100)],
        "   joint solution": [(90, 100), (90, 100)],
        "   ~(A | B) equals ~A & ~B: True": [],
    },
}


@pytest.mark.parametrize("name", RANGES)
def test_accuracies_are_in_their_ranges(name: str) -> None:
    text = run(name)
    for start, ranges in RANGES[name].items():
        for accuracy, (least, most) in zip(numbers(text, start), ranges, strict=True):
            assert least <= accuracy <= most, start


def test_growing_heads() -> None:
    text = run("growing_heads.py")
    plain, shielded = text.split("with a shield")
    assert len(numbers(shielded, "after task 4")) == 4
    (first,) = numbers(shielded, "after task 1")
    at_the_end = numbers(shielded, "after task 4")
    assert at_the_end[0] > first - 4  # kept
    assert min(at_the_end) > 90  # and every task learned
    assert numbers(plain, "after task 4")[0] < first - 15  # where it is lost otherwise
    assert numbers(shielded, "mean at the end")[0] > numbers(plain, "mean at the end")[0] + 5
    # heads that were added are shielded too
    assert re.search(r"'heads\.3\.2': 0\.(0[1-9]|[1-9])", plain)


@pytest.mark.parametrize("processes", [1, 2])
def test_torchrun_ddp(processes: int) -> None:
    if processes == 1:
        text = run("torchrun_ddp.py")
    elif dist.is_available() and dist.is_gloo_available():
        text = run(
            "torchrun_ddp.py",
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        )
    else:
        pytest.skip("torch was built without gloo")
    assert numbers(text, "processes:") == [processes]
    assert numbers(text, "largest difference between their conceptors:") == [0.0]
    assert numbers(text, "largest difference between their weights:") == [0.0]
    assert abs(numbers(text, "quota of layer 0:")[0] - 0.214) < 0.03  # one process or two
    accuracy = re.search(r"digits 0-4 ([\d.]+) %, digits 5-9 ([\d.]+) %", text)
    assert accuracy
    assert min(float(value) for value in accuracy.groups()) > 85


class BagOfWords(nn.Module):
    """Sentences to the mean of fixed random vectors of their words `[n, width]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(5000, width)

    def forward(self, sentences: list[str]) -> Tensor:
        words = [[zlib.crc32(word.encode()) % 5000 for word in s.split()] for s in sentences]
        starts = torch.tensor([0, *(len(row) for row in words[:-1])]).cumsum(0)
        vectors: Tensor = self.words(torch.tensor([w for row in words for w in row]), starts)
        return vectors


def test_intents_are_learned_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    example = runpy.run_path(str(EXAMPLES / "sentence_intents.py"))
    assert {len(texts) for texts in example["SENTENCES"].values()} == {8}
    example["main"](BagOfWords(200), 200, 500, ["where is my parcel", "play some jazz"])
    text = capsys.readouterr().out
    accuracies = [float(value) for value in re.findall(r"([\d.]+) % correct", text)]
    assert len(accuracies) == 6
    assert min(accuracies) > 60  # guessing: 17
    assert "'where is my parcel': track_order" in text
    assert "'play some jazz': play_music" in text
