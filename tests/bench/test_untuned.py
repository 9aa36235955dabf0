"""A small part of the untuned suite: `Shield(model)` learns the new and keeps the old."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conceptors.bench.row import Row
from conceptors.bench.untuned import catalogue, suite
from conceptors.bench.untuned.sequence import Rate, learn
from conceptors.bench.untuned.suite import Cell, Runner, untuned

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], Path]:
    folder = tmp_path_factory.mktemp("untuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)  # in this process
        return untuned("tiny", CPU, folder), folder


def test_nothing_is_chosen_and_it_learns(rows: tuple[list[Row], Path]) -> None:
    by_name = {row.setting.split(" (")[0]: row for row in rows[0]}
    wanted = {
        "digits 5x2, pixels 0-1, AdamW 0.001": (25, 92),
        "digits 5x2, pixels 0-1, SGD 0.1": (25, 85),
        "digits, one class a task, AdamW 0.001": (15, 88),
        "digits, one class a task, SGD 0.1": (15, 60),
    }
    assert set(by_name) == set(wanted)
    for name, (at_most, at_least) in wanted.items():
        row = by_name[name]
        assert row.plain is not None
        assert row.ours is not None
        assert row.plain < at_most, name
        assert row.ours > at_least, name
        assert row.notes["joint"][0] > 93
        assert row.notes["readout"][0] > 95


def test_cells_that_are_on_disk_are_not_run_again(
    rows: tuple[list[Row], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = rows[1].glob("untuned-cells-cpu.json")
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert len(kept) == 16

    def fails(work: object) -> None:
        raise AssertionError("run again")

    monkeypatch.setattr(suite, "run_cell", fails)
    again = untuned("tiny", CPU, rows[1])
    assert [row.ours for row in again] == [row.ours for row in rows[0]]


def test_the_best_of_the_grid_is_chosen_on_validation_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cell(work: tuple[Cell, str]) -> tuple[str, dict[str, list[float]]]:
        one, _ = work
        good = 90.0 if one.aperture == 27.0 and one.optimizer.rate == pytest.approx(3e-3) else 50.0
        return one.key, {"validation": [good], "test": [100 - good], "learned": [100.0]}

    monkeypatch.setattr(suite, "run_cell", cell)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    row = untuned("tiny", CPU, tmp_path, only=["digits 2x5"], grid=True)[0]
    assert "aperture 27" in row.notes["grid_setting"]
    assert row.notes["grid"][0] == pytest.approx(10.0)  # test data had no say
    with pytest.raises(ValueError, match="no sequence"):
        untuned("tiny", CPU, only=["no such thing"])


@pytest.mark.parametrize("name", ["digits 5x2, growing head", "regression, 1-D by intervals"])
def test_growing_heads_and_regression(name: str) -> None:
    found = learn(catalogue.ALL[name], "shield", Rate("AdamW", 1e-3), seed=0, device=CPU)
    assert sum(found["test"]) / len(found["test"]) > 85


def test_sequences_have_their_own_parts() -> None:
    for name in ("digits 5x2, pixels 0-1", "digits permuted x5", "regression, four subspaces"):
        for lesson in catalogue.ALL[name].lessons():
            assert {len(part[0]) == len(part[1]) for part in (lesson.train, lesson.test)} == {True}
    train, validation, test = catalogue.digits("0-1")
    rows = torch.cat([train[0], validation[0], test[0]])
    assert len(rows) == 1797
    assert not (train[0][:, None] == test[0][None, :50]).all(-1).any()


def test_a_runner_without_a_folder_keeps_nothing() -> None:
    assert Runner(CPU, None).done == {}


class Adapted(nn.Module):
    """A frozen layer, and a correction of small rank that is learned (LoRA)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + 2 * self.up(self.down(x))
        return found


def test_adapters_of_small_rank_have_room_for_five_tasks() -> None:
    def network() -> nn.Module:
        first, second = Adapted(nn.Linear(64, 256), 8), Adapted(nn.Linear(256, 256), 8)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(256, 10))

    sequence = replace(catalogue.ALL["digits 5x2, pixels 0-1"], model=network)
    found = learn(sequence, "shield", Rate("AdamW", 1e-3), seed=0, device=CPU)
    assert min(found["learned"]) > 80
    assert sum(found["learned"]) / 5 > 90
    assert sum(found["test"]) / 5 > 75
