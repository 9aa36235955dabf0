"""The performance suite: that it measures what it says; how fast anything is, is not tested."""

from __future__ import annotations

import copy
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conceptors import Shield
from conceptors.bench import (
    BENCHMARKS,
    Row,
    choose,
    data,
    find_device,
    floor,
    models,
    read,
    recipes,
    run_suite,
)
from conceptors.bench.ceilings import Ceilings, measure_ceilings
from conceptors.bench.measure import Timing, peak_memory, side_by_side
from conceptors.bench.plot import plot_growth
from conceptors.bench.protection import drift, leak, outputs
from conceptors.bench.remember import collection_time
from conceptors.bench.row import Benchmark, UnfitError
from conceptors.bench.table import table
from conceptors.cli import main

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# --- every benchmark ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "untuned"])  # its own file
def test_every_benchmark_runs_at_tiny_size(name: str) -> None:
    rows = BENCHMARKS[name].run("tiny", CPU)
    assert rows
    for row in rows:
        assert row.what == name
        assert row.setting
        assert row.ours is not None
        if name != "family":  # differences of tiny times may have any sign
            assert row.ours > 0
            assert row.ratio is None or (math.isfinite(row.ratio) and row.ratio > 0)
        assert row.met is None, "targets are for real sizes"
        json.dumps(row.plain_dict(), allow_nan=False)
        if name.startswith(("step", "layer")):
            assert row.floor is not None
            assert row.drift is not None
            assert row.drift_plain is not None
            assert row.floor > 0
            assert 0 <= row.drift < row.drift_plain, "the shield protects"
    assert len(table(rows).splitlines()) == len(rows) + 2


def test_stacked_seeds_learn_what_single_ones_do() -> None:
    row = BENCHMARKS["seeds"].run("tiny", CPU)[0]
    assert row.notes["largest_difference_of_accuracy_percent"] < 1e-3


# --- the suite ---------------------------------------------------------------------------


def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick ones in place of all benchmarks, of which one fails and one is not for here."""

    def fine(size: Any, device: Any) -> list[Row]:
        return [Row("fine", size, plain=1.0, ours=2.0, ratio=2.0, target=1.5)]

    def broken(size: Any, device: Any) -> list[Row]:
        raise RuntimeError("out of luck")

    def unfit(size: Any, device: Any) -> list[Row]:
        raise UnfitError("no data")

    def strange(size: Any, device: Any) -> list[Row]:
        return [Row("strange", size, ours=math.nan, ratio=math.inf, notes={"x": [math.nan, 1.0]})]

    for name in list(BENCHMARKS):
        monkeypatch.delitem(BENCHMARKS, name)
    for run in (fine, broken, unfit, strange):
        name = run.__name__
        monkeypatch.setitem(BENCHMARKS, name, Benchmark(name, f"about {name}", run))


def test_one_that_fails_is_noted_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(monkeypatch)
    said: list[str] = []
    outcome = run_suite([], "tiny", CPU, folder=tmp_path / "new", progress=said.append)
    assert [row.what for row in outcome.rows] == ["fine", "strange"]
    assert set(outcome.failed) == {"broken"}
    assert "RuntimeError: out of luck (test_bench.py:" in outcome.failed["broken"]
    assert outcome.left_out == {"unfit": "no data"}
    assert "1/4 fine: about fine" in said
    found = read(tmp_path / "new" / "cpu.json")
    assert [row["what"] for row in found["rows"]] == ["fine", "strange"]
    assert found["rows"][0]["met"] is False
    assert found["rows"][1]["ratio"] is None
    assert found["rows"][1]["notes"] == {"x": [None, 1.0]}
    assert found["machine"]["torch"] == torch.__version__
    assert found["ceilings"]["float32"] > 0
    text = (tmp_path / "new" / "cpu.md").read_text(encoding="utf-8")
    assert "| fine " in text
    assert "MISSED" in text
    assert "FAILED: broken" in text
    assert "not measured: unfit: no data" in text


def test_what_is_finished_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins(monkeypatch)

    def killed(size: Any, device: Any) -> list[Row]:
        raise KeyboardInterrupt

    monkeypatch.setitem(BENCHMARKS, "broken", Benchmark("broken", "", killed))
    with pytest.raises(KeyboardInterrupt):
        run_suite([], "tiny", CPU, folder=tmp_path)
    assert [row["what"] for row in read(tmp_path / "cpu.json")["rows"]] == ["fine"]


def test_names_and_devices_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="did you mean 'step-mlp'"):
        choose(["step-mpl"], CPU)
    with pytest.raises(ValueError, match="device 'tpu' cannot be used"):
        find_device("tpu")
    with pytest.raises(ValueError, match="benchmarks run on cpu or cuda"):
        find_device("meta")
    with pytest.raises(ValueError, match="size must be one of tiny, quick, full"):
        run_suite([], "huge", CPU)  # type: ignore[arg-type]
    assert choose(["tasks", "tasks"], CPU) == ["tasks"]
    assert "permuted" not in choose([], CPU)
    assert "step-mlp" not in choose([], torch.device("cuda"))


def test_a_file_that_is_no_result(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"schema": 9}'):
        (tmp_path / "cpu.json").write_text(text)
        with pytest.raises(ValueError, match="holds no results of benchmarks"):
            read(tmp_path / "cpu.json")


def test_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"plain": 10, "ours": 11}
    rows = [
        Row(
            "growth",
            f"{curve} {value}",
            ratio=1.0 + value / 10,
            notes={"curve": curve, "value": value, "ratio_quartiles": [1.0, 2.0]}
            | {"peak_bytes": peaks if curve == "width" else None},
        )
        for curve, values in {
            "width": [1, 2],
            "rank": [1],
            "batch": [1, 4],
            "tasks": [1, 2],
        }.items()
        for value in values
    ]
    stand_ins(monkeypatch)
    monkeypatch.setitem(BENCHMARKS, "fine", Benchmark("fine", "", lambda size, device: rows))
    run_suite(["fine", "strange"], "tiny", CPU, folder=tmp_path)
    picture = plot_growth(tmp_path / "cpu.json", tmp_path / "growth.svg")
    text = picture.read_text(encoding="utf-8")
    assert "<svg" in text
    assert "tasks remembered" in text
    with pytest.raises(ValueError, match=r"must end in one of \.svg"):
        plot_growth(tmp_path / "cpu.json", tmp_path / "growth.txt")
    run_suite(["strange"], "tiny", CPU, folder=tmp_path)
    with pytest.raises(ValueError, match="holds no growth curves"):
        plot_growth(tmp_path / "cpu.json", picture)
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ImportError, match="need altair, which is not installed"):
        plot_growth(tmp_path / "cpu.json", picture)


# --- the command -------------------------------------------------------------------------


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "usage: conceptors bench" in out
    assert "examples:" in out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in BENCHMARKS)


def test_the_command_prints_a_table_and_writes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_ins(monkeypatch)
    line = ["bench", "fine", "--size", "tiny", "--device", "cpu", "--out", str(tmp_path)]
    assert main(line) == 0
    said = capsys.readouterr()
    assert f"torch {torch.__version__}" in said.out
    assert "conceptors bench fine --size tiny" in said.out
    assert "| fine " in said.out
    assert "1/1 fine" in said.err
    assert read(tmp_path / "cpu.json")["command"].startswith("conceptors bench fine")
    assert main(["bench", "fine", "broken", "--device", "cpu"]) == 1
    capsys.readouterr()
    assert main(["bench", "fines", "--device", "cpu"]) == 2
    assert "did you mean 'fine'" in capsys.readouterr().err


# --- measuring ---------------------------------------------------------------------------


def test_all_are_called_equally_often_and_in_turn() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    found = side_by_side(calls, CPU, rounds=4, block=0.0, warm=2)
    assert order == [*"aabb", *"ab", *"ab", *"ba", *"ab", *"ba"]
    assert found["a"].calls == found["b"].calls == order.count("a")


def test_ratio_and_spread() -> None:
    ours, plain = Timing((2.0, 4.0, 6.0), 3), Timing((1.0, 2.0, 2.0), 3)
    assert ours.median == 4.0
    assert plain.quartiles == (1.5, 2.0)
    assert ours.against(plain) == (2.0, 2.0, 2.5)


def test_peak_memory_counts_what_was_built() -> None:
    def build() -> Any:
        held = torch.zeros(1000)
        return lambda: (held + 1) + 2  # two more at once

    assert 3 * 4000 <= peak_memory(build, CPU) < 3.1 * 4000


def test_the_collection_is_timed_and_leaves_no_trace() -> None:
    recipe = recipes.resnet18("tiny", CPU)
    model = recipe.build()
    before = copy.deepcopy(model.state_dict())
    assert collection_time(recipe, model, [recipe.batch(0)]) > 0
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_ceilings_are_measured_once() -> None:
    found = measure_ceilings(CPU, "tiny")
    assert found is measure_ceilings(CPU, "tiny")
    assert min(found.bandwidth, found.float32, found.float64) > 0
    assert replace(found, float32=1.0, tf32=6.0).exact == 2.0
    assert found.exact == found.float32


# --- the floor ---------------------------------------------------------------------------


def test_floor_of_a_linear_layer() -> None:
    (block,) = floor.blocks(nn.Linear(9, 5))
    assert (block.groups, block.out, block.d) == (1, 5, 10)
    thin = floor.of_weights(block, 2)
    assert thin == floor.Work(flops=4 * 5 * 10 * 2, bytes=4 * (2 * 50 + 20))
    dense = floor.of_weights(block, 8)
    assert dense == floor.Work(flops=2 * 5 * 100, bytes=4 * (2 * 50 + 100))
    rows = floor.of_rows(block, 2, rows=3)
    assert rows == floor.Work(flops=4 * 3 * 10 * 2, bytes=4 * (2 * 30 + 20))
    slow = Ceilings(bandwidth=1e9, float32=1e3, float64=1.0)
    fast = Ceilings(bandwidth=1e3, float32=1e9, float64=1.0)
    name, model = {"Linear": 2}, nn.Linear(9, 5)
    assert floor.least_seconds(model, name, slow) == pytest.approx(0.4)
    assert floor.least_seconds(model, name, fast) == pytest.approx(0.48)
    assert floor.least_seconds(model, name, slow, rows=3) == pytest.approx(0.24)
    assert floor.least_seconds(model, {}, slow) == 0


def test_floor_of_other_layers() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Embedding(7, 4), nn.LayerNorm(5), nn.GELU()
    )
    shapes = {b.name: (b.groups, b.out, b.d) for b in floor.blocks(model)}
    assert shapes == {"0": (1, 8, 28), "1": (8, 1, 2), "2": (7, 4, 1), "3": (5, 1, 2)}


def test_shared_weights_are_read_once() -> None:
    blocks = {b.name: b for b in floor.blocks(models.GPT2(20, 4, 8, 1, 2))}
    assert blocks["head"].shared
    assert not blocks["tokens"].shared
    assert floor.of_weights(blocks["head"], 1).bytes == 4 * 8


def test_blocks_have_the_names_and_sizes_of_the_shields_sites() -> None:
    for model in (models.GPT2(20, 4, 8, 1, 2), models.ResNet18(2), models.ViT(16, 8, 8, 1, 2)):
        shield = Shield(model)
        assert {b.name for b in floor.blocks(model)} == set(shield.quota())


def test_ranks_are_what_is_protected() -> None:
    x = torch.randn(50, 3) @ torch.randn(3, 10)
    for rank, wanted in ((None, 3), (2, 2), (0.1, 1)):
        shield = Shield(nn.Linear(10, 4, bias=False), rank=rank).remember(x)
        assert floor.ranks(shield) == {"Linear": wanted}
        shield.detach()


# --- protection --------------------------------------------------------------------------


def test_drift_and_leak() -> None:
    model = nn.Linear(6, 4, bias=False)
    first, plain = copy.deepcopy(model), copy.deepcopy(model)
    x = torch.randn(50, 2) @ torch.randn(2, 6)
    shield = Shield(model, aperture=1e4, hard=True).remember(x)
    before = outputs(model, x)
    assert leak(shield, first, plain) is None
    assert drift(before, outputs(model, x)) == 0
    vectors, values, _ = shield.conceptors()["Linear"].spectrum
    used, free = (vectors[0][:, [int(i)]].mT.float() for i in (values.argmax(), values.argmin()))
    with torch.no_grad():
        plain.weight += 1
        model.weight += torch.randn(4, 1) @ free
    assert drift(before, outputs(model, x)) < 1e-5
    found = leak(shield, first, plain)
    assert found is not None
    assert found < 1e-5
    with torch.no_grad():
        model.weight += torch.randn(4, 1) @ used
    assert drift(before, outputs(model, x)) > 0.01
    found = leak(shield, first, plain)
    assert found is not None
    assert found > 0.01


# --- models and data ---------------------------------------------------------------------


def test_sizes_of_the_models() -> None:
    with torch.device("meta"):
        count = {
            kind.__name__: sum(p.numel() for p in kind().parameters())
            for kind in (models.GPT2, models.ViT, models.ResNet18, models.mlp)
        }
    assert count["GPT2"] == 124_439_808  # as published
    assert count["ViT"] == 22_050_664  # likewise
    assert count["ResNet18"] == 11_220_132  # with 100 classes
    assert count["mlp"] == 785 * 800 + 801 * 10


def test_outputs_of_the_models() -> None:
    gpt = models.GPT2(20, 6, 8, 2, 2).eval()
    text = torch.randint(20, (2, 6))
    out = gpt(text)
    assert out.shape == (2, 6, 20)
    changed = text.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 20
    torch.testing.assert_close(gpt(changed)[:, :4], out[:, :4])  # no look ahead
    assert not torch.allclose(gpt(changed)[:, 4:], out[:, 4:])
    assert gpt.head.weight is gpt.tokens.weight
    assert models.ResNet18(2, 5)(torch.randn(3, 3, 32, 32)).shape == (3, 5)
    assert models.ViT(16, 8, 8, 1, 2, 5)(torch.randn(3, 3, 16, 16)).shape == (3, 5)


def test_made_up_data() -> None:
    x = data.images(50, 1, 16, seed=0)
    power = torch.fft.rfft2(x).abs().square().mean((0, 1))
    assert power[0, 1] > 10 * power[0, 8]  # coarse structure is strongest
    drawn = data.tokens(100, 20, 50, task=0, seed=0)
    counts = drawn.flatten().bincount(minlength=50).sort(descending=True).values
    assert counts[0] > 5 * counts[20]
    many, motif = data.pictures(50, 1, 16, task=0, seed=0)
    assert many.shape == (50, 1, 16, 16)
    same = many[motif == motif[0]].flatten(1)
    assert bool((torch.corrcoef(same)[0, 1:] > 0.2).all())
    where, images, labels = data.digits("tiny")
    assert where == "made-up digits"
    assert images.shape == (len(labels), 784)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    assert torch.equal(x, data.images(50, 1, 16, seed=0))
