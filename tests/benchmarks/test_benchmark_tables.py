"""The parts that all benchmarks share."""

from __future__ import annotations

import csv
import doctest
import os
from pathlib import Path

import pytest
import torch
from torch import nn

common = pytest.importorskip("benchmarks.common", reason="no benchmarks beside the tests")


def test_the_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(common).failed == 0


def test_training_reports_divergence() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1e20)
    assert not common.train(optimizer, lambda _: weight.square().sum(), 8, epochs=9, batch=4)


def test_a_failed_write_leaves_the_old_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.csv"
    table = common.Table(path, ("seed",))
    table.add({"seed": 0})
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        table.add({"seed": 1})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["runs.csv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("method,accuracy\ncab,1\n", "no column 'seed'"), ("seed\n0\n0\n", "contains a run twice")],
)
def test_a_foreign_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        common.Table(path, ("seed",))


def test_every_committed_table_is_read() -> None:
    folder = Path(__file__).parents[2] / "results"
    if not folder.is_dir():
        pytest.skip("no results beside the tests")
    for path in folder.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert rows, path
        assert all(None not in row and None not in row.values() for row in rows), path
