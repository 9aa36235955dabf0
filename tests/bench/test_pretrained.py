"""The comparison on a pretrained encoder: every method that needs no peft, resuming, the page."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.wording import TinyEncoder, forget, use_made_up
from conceptors.bench.pretrained import choice, page, work
from conceptors.bench.pretrained.cells import Cell, final, forgetting, run
from conceptors.bench.pretrained.main import main
from conceptors.bench.pretrained.registry import METHODS, ROWS
from conceptors.bench.pretrained.stream import Size, read

HOME = Path(__file__).parents[2]
PAGE, RESULTS = HOME / "docs" / "pretrained.md", HOME / "results" / "pretrained" / "results.json"
SMALL = Size(2, 50)
QUICK = {"rate": 1e-2, "head_rate": 3e-2, "epochs": 3, "lift": 100, "fisher_sentences": 10}
OWN = [row.name for row in ROWS if row.needs is None]


def _die(cell: Cell) -> None:
    os._exit(9)


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_made_up(monkeypatch, TinyEncoder)
    for row in ROWS:
        monkeypatch.setattr(row, "grid", [{}, {"rate": 1e-3}] if row is ROWS[0] else [{}])
        monkeypatch.setattr(row, "defaults", {**row.defaults, **QUICK})
    yield
    forget()


@pytest.mark.parametrize("name", OWN)
def test_every_method_learns(name: str) -> None:
    found = run(Cell(name, 0, QUICK, "val", True, SMALL, "cpu"))
    stages = 1 if METHODS[name].at_once else 2
    assert [len(found[column]) for column in ("one", "known")] == [stages, stages]
    assert final(found["known"]) > 70
    assert final(found["one"]) <= final(found["known"])
    assert (found["stored"] > 0) == (name not in ("plain", "joint"))


def test_readouts_keep_what_plain_training_loses() -> None:
    names = ("plain", "readout", "shield + readout")
    runs = [run(Cell(name, 0, QUICK, "val", False, SMALL, "cpu")) for name in names]
    plain, *ours = [final(one["one"]) for one in runs]
    assert min(ours) > plain + 5


def test_batches_are_cut_to_their_longest_sentence() -> None:
    part = read(SMALL, "cpu").parts["train"][0]
    for ids in part.batches(16):
        assert bool((ids[:, -1] != 0).any())
    assert sum(map(len, part.batches(16))) == len(part) == 100


def test_forgetting_is_what_was_lost() -> None:
    assert forgetting([[90.0], [80.0, 95.0], [85.0, 92.0, 99.0]]) == pytest.approx(4.0)
    assert forgetting([[85.0, 92.0]]) is None  # learned at once


def start(out: Path, *more: str) -> dict[str, Any]:
    size = ["--domains", "2", "--sentences", "50", "--device", "cpu", "--seeds", "2"]
    main([*size, "--out", str(out), *more])
    found: dict[str, Any] = json.loads((out / "results.json").read_text("utf-8"))
    return found


CHEAP = ("--method", "plain", "--method", "readout")


def test_one_command_chooses_tests_and_times(tmp_path: Path) -> None:
    found = start(tmp_path, *CHEAP)
    assert len(found["trials"]) == 3
    assert {one["part"] for one in found["trials"]} == {"val"}  # test sentences choose nothing
    tested = {(one["method"], one["seed"]) for one in found["runs"]}
    assert tested == {(name, seed) for name in ("plain", "readout") for seed in (0, 1)}
    assert found["timing"]["plain"]["ratio"] == 1.0
    best = max(found["trials"][:1] + found["trials"][2:], key=lambda one: final(one["one"]))
    assert found["chosen"]["plain"]["one"] == best["settings"]


def test_it_resumes_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Cell] = []

    def counted(cell: Cell) -> dict[str, Any]:
        seen.append(cell)
        if len(seen) == 5:
            raise KeyboardInterrupt
        return run(cell)

    monkeypatch.setattr(work, "run", counted)
    steps = ("--step", "tune", "--step", "test")
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, *CHEAP, *steps)
    half = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert len(half["trials"]) == 3
    whole = start(tmp_path, *CHEAP, *steps)
    assert whole["runs"][: len(half["runs"])] == half["runs"]
    cells = [cell for i, cell in enumerate(seen) if i != 4]
    assert len({str(cell) for cell in cells}) == len(cells)  # none was run twice
    before = len(seen)
    assert start(tmp_path, *CHEAP, *steps) == whole
    assert len(seen) == before


def test_rows_are_skipped_without_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    found = start(tmp_path, "--method", "osf", "--method", "plain", "--step", "tune")
    assert {one["method"] for one in found["trials"]} == {"plain"}
    assert "osf is skipped: peft cannot be imported" in capsys.readouterr().out


def test_nothing_is_begun_when_time_is_up(tmp_path: Path) -> None:
    found = start(tmp_path, *CHEAP, "--step", "tune", "--step", "test", "--minutes", "1e-9")
    assert found["trials"] == found["runs"] == []


def test_settings_for_all_reach_those_that_have_them(tmp_path: Path) -> None:
    found = start(tmp_path, *CHEAP, "--step", "test", "--set", "epochs=1", "--set", "lift=50")
    plain, readout = (found["chosen"][name]["one"] for name in ("plain", "readout"))
    assert plain["epochs"] == readout["epochs"] == 1
    assert readout["lift"] == 50
    with pytest.raises(SystemExit):
        start(tmp_path, "--set", "epoch=1")


def test_a_killed_process_is_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "attempt", _die)
    cells = [Cell("plain", seed, {}, "val", False, SMALL, "cpu") for seed in range(3)]
    found = list(work._results(cells, 2, math.inf))
    assert sorted(one["seed"] for one in found) == [0, 1, 2]
    assert all("a process was killed" in one["error"] for one in found)


def test_only_what_is_asked_for_is_chosen() -> None:
    cells = choice.trials(["plain"], {}, SMALL, "cpu")
    done = [{**cell.key(), "one": [[50.0]], "known": [[50.0]]} for cell in cells[:1]]
    other = {**cells[0].key(), "one": [[90.0]], "known": [[90.0]]}
    other["settings"] = {**cells[0].settings, "epochs": 20}
    assert choice.choose([*done, other], cells)["plain"]["one"] == cells[0].settings


def test_trials_are_compared_on_the_seeds_that_they_share() -> None:
    cells = choice.trials(["plain"], {}, SMALL, "cpu", seeds=2)

    def tried(place: int, right: float) -> Any:
        return {**cells[place].key(), "one": [[right]], "known": [[right]]}

    stopped = [tried(0, 86.0), tried(1, 84.0), tried(2, 85.5)]  # the second has one seed only
    assert choice.choose(stopped, cells)["plain"]["one"] == cells[0].settings
    assert choice.choose([*stopped, tried(3, 85.5)], cells)["plain"]["one"] == cells[2].settings


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}", "utf-8")
    with pytest.raises(ValueError, match="not of this script"):
        start(tmp_path)


def test_sizes_are_not_mixed(tmp_path: Path) -> None:
    work.save(tmp_path / "results.json", work.load(tmp_path / "results.json", Size()))
    with pytest.raises(ValueError, match=r"\[10, 100\] domains and sentences, not \[2, 50\]"):
        start(tmp_path)


def test_a_run_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def some(cell: Cell) -> dict[str, Any]:
        if cell.method == "plain":
            raise RuntimeError("out of memory")
        return run(cell)

    monkeypatch.setattr(work, "run", some)
    with pytest.raises(SystemExit, match="2 runs failed"):
        start(tmp_path, *CHEAP, "--step", "tune")
    assert [one["method"] for one in work.load(tmp_path / "results.json", SMALL)["trials"]] == [
        "readout"
    ]
    assert "out of memory" in capsys.readouterr().out


def test_the_page_is_made_of_the_results(tmp_path: Path) -> None:
    runs = [
        {
            "method": "plain",
            "seed": seed,
            "settings": {"rate": 1e-4},
            "part": "test",
            "one": [[90.0], [50.0, 90.0 + seed]],
            "known": [[98.0], [96.0, 97.0]],
            "stored": 0,
        }
        for seed in (0, 1)
    ]
    chosen = {"plain": {"one": {"rate": 1e-4}, "known": {"rate": 1e-4}}}
    results = {**work.load(tmp_path / "none", Size()), "runs": runs, "chosen": chosen}
    target = tmp_path / "page.md"
    target.write_text(f"# A page\n\n{page.BEGIN}\nold\n{page.END}\nend\n", "utf-8")
    page.write(results, target)
    text = target.read_text("utf-8")
    line = next(
        line for line in text.splitlines() if line.startswith(f"| {METHODS['plain'].about}")
    )
    cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
    assert cells.pop(0) == "2"  # seeds
    assert cells[:4] == ["70.25 ± 0.35", "40.00 ± 0.00", "96.50 ± 0.00", "2.00 ± 0.00"]
    assert cells[4:] == [page.NOT_RUN] * 3 + ["0"]
    assert "old" not in text
    assert text.endswith("\nend\n")
    assert page.NOT_RUN in text.split("target")[1]


@pytest.mark.skipif(not PAGE.exists(), reason="the page is in the checkout")
def test_the_committed_page_is_what_its_results_make(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text("utf-8"), "utf-8")
    page.write(work.load(RESULTS, Size()), copy)
    assert copy.read_text("utf-8") == PAGE.read_text("utf-8")
