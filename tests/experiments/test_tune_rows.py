"""Grids for the comparison: what is tried, and that points learn together as they do alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.benchmarks import BENCHMARKS
from conceptors.experiments.compare import why_not
from conceptors.experiments.events import Event, quiet
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.grids import GRIDS, QUICK
from conceptors.experiments.ledger import locked
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.methods.settings import settings_of_members
from conceptors.experiments.trials import Trial, scores_of_points, validation_accuracies
from conceptors.experiments.tune_rows import (
    How,
    chosen,
    experiment,
    points,
    run_searches,
    searches,
    stacks,
)
from conceptors.experiments.tuned import TUNED, adopt, read
from experiments.tasks import blobs

ROW = "disjoint-mnist-2"
TINY: dict[str, Any] = {"steps": 4, "batch": 8, "hidden": "8,8", "check_every": 4, "samples": 30}
DIFFERING: dict[str, list[dict[str, Any]]] = {
    "owm": [{"alpha": "1", "rate": 0.1}, {"alpha": "0.5,1,0.2", "alpha_decay": "0.01"}],
    "gpm": [{"threshold": 0.6, "rate": 0.5}, {"threshold": 0.9, "input_threshold": 0.5}],
    "sgp": [{"coefficient": 1.0, "later_rate": 0.5}, {"coefficient": 20.0, "increase": 0.01}],
    "trgp": [{"trust": 0.1, "own_rate": 2.0}, {"trust": 0.9, "threshold": 0.7}],
    "codecl": [{"aperture": 1.0, "kept": 0.5}, {"aperture": 8.0, "overlap": 0.1}],
    "cab": [{"aperture": 2.0, "rate": 0.1}, {"aperture": 20.0, "input_aperture": 50.0}],
    "ewc": [{"strength": 0.0}, {"strength": 30.0, "rate": 0.05}],
    "imm": [{"share": 0.3, "l2": 0.0}, {"share": 0.7, "l2": 0.1}],
    "sgd": [{"rate": 0.1}, {"rate": 0.4, "later_rate": 0.2}],
}


def tiny(method: str, **more: Any) -> Experiment:
    known = METHODS[method].settings_type.__dataclass_fields__
    own = {name: value for name, value in (TINY | more).items() if name in known}
    return Experiment(
        "permuted-mnist",
        [method],
        [100, 101],
        options={"tasks": 3},
        settings={method: own},
        stacked=2,
        arrays=blobs(),
    )


@pytest.mark.parametrize("method", DIFFERING)
def test_points_learn_together_as_they_do_alone(method: str) -> None:
    common, asked = tiny(method, momentum=0.5), DIFFERING[method]
    alone = [validation_accuracies(Trial(common, one, [100, 101]).tried, quiet) for one in asked]
    assert scores_of_points(common, asked, quiet) == [pytest.approx(one, abs=2.5) for one in alone]
    assert alone[0] != alone[1]


def test_a_point_that_diverges_does_not_take_the_others_with_it() -> None:
    common, asked = tiny("gpm"), [{"rate": 0.1}, {"rate": 0.2}, {"rate": 1e30}]
    found = scores_of_points(common, asked, quiet)
    assert found[2] == [0.0, 0.0]
    without = scores_of_points(common, asked[:2], quiet)
    assert found[:2] == [pytest.approx(one, abs=2.5) for one in without]
    assert min(map(min, found[:2])) > 0


def test_rates_do_not_differ_where_weights_decay() -> None:
    with pytest.raises(ValueError, match=r"rates cannot differ within a stack with decay=0\.1"):
        scores_of_points(tiny("cab", decay=0.1), [{"rate": 0.1}, {"rate": 0.2}], quiet)


@pytest.mark.parametrize("pull", [0.0, 0.1])
def test_members_learn_and_are_pulled_back_at_their_own_rates(pull: float) -> None:
    rates = [0.1, 0.4]
    kind = METHODS["cab"]
    common = tiny("cab", momentum=0.5, increment_decay=pull)
    alone = [parse_settings(kind.settings_type, {**common.config("cab"), "rate": r}) for r in rates]

    def weights(seeds: list[int], settings: Any) -> list[Tensor]:
        found = kind(common.build(seeds, torch.device("cpu")), settings, torch.device("cpu"), quiet)
        for number in range(2):
            found.learn(number)
        return [p.detach() for p in found.model.parameters()]

    together = weights([100, 101], settings_of_members(alone))
    for i, (seed, own) in enumerate(zip([100, 101], alone)):
        for ours, theirs in zip(together, weights([seed], own)):
            torch.testing.assert_close(ours[i : i + 1], theirs, rtol=1e-4, atol=1e-5)


def test_what_cannot_differ_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"samples is one for all .*, got \(5, 5, 6, 6\); what may"
    ):
        scores_of_points(tiny("gpm"), [{"samples": 5}, {"samples": 6}], quiet)
    apart = [{"samples": 5, "rate": 1.0}, {"samples": 6, "rate": 1.0}, {"samples": 5, "rate": 2.0}]
    assert [[p["rate"] for p in stack] for stack in stacks("gpm", apart)] == [[1.0, 2.0], [1.0]]


@pytest.mark.parametrize("row", GRIDS)
def test_every_grid_can_be_tried(row: str) -> None:
    assert set(GRIDS) == set(BENCHMARKS)
    relatives = ("ewc", "imm", "owm", "gpm", "sgp", "trgp", "codecl", "cab")
    assert set(GRIDS[row]) == {m for m in relatives if not why_not(BENCHMARKS[row], m)}
    for search in searches([row]):
        found = points(search, experiment(search, How("cpu")))
        assert 3 <= len(found) <= 24
        assert len(list(stacks(search.method, found))) <= 2
        if search.method == "owm":
            for alphas in search.grid["alpha_decay"]:
                layers = BENCHMARKS[row].network.count(",") + 2
                assert alphas.count(",") in (0, layers - 1)


def test_what_is_chosen_is_written_over_what_was(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text("{}")
    adopt({"disjoint-mnist-5": {"gpm": {"rate": 0.1}}, ROW: {"cab": {"aperture": 2.0}}}, path)
    adopt({ROW: {"cab": {"aperture": 3.0}, "owm": {"alpha_decay": "0.1,1"}}}, path)
    assert read(path) == {
        ROW: {"cab": {"aperture": 3.0}, "owm": {"alpha_decay": "0.1,1"}},
        "disjoint-mnist-5": {"gpm": {"rate": 0.1}},
    }
    assert list(read(path)) == [ROW, "disjoint-mnist-5"]  # in the order of the benchmarks
    assert read() == {
        row: {name: own for name, own in by_method.items() if name != "*"}
        for row, by_method in TUNED.items()
        if len(by_method) > 1
    }


def test_what_was_chosen_has_no_part_in_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    (search,) = searches([ROW], ["cab"])
    chosen_before = {"*": TUNED[ROW]["*"], "cab": {"energy": 0.5, "rate": 9.0, "aperture": 7.0}}
    monkeypatch.setitem(TUNED, ROW, chosen_before)
    config = experiment(search, How("cpu")).config("cab")
    assert (config["energy"], config["rate"]) == (0.0, 0.4)
    assert {name: config[name] for name in search.grid} == {
        name: values[0] for name, values in search.grid.items()
    }


def test_what_a_grid_tries_is_not_given_too() -> None:
    (search,) = searches([ROW], ["owm"])
    with pytest.raises(ExperimentError, match="rate is tried by the grid of disjoint-mnist-2, owm"):
        experiment(search, How("cpu", settings={"rate": 0.5}))


def test_a_search_waits_until_another_has_written(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with locked(tmp_path, wait=True):
            order.append("second")

    with locked(tmp_path):
        with pytest.raises(ExperimentError, match="another run is writing to"), locked(tmp_path):
            pass
        other = threading.Thread(target=second)
        other.start()
        other.join(0.2)
        order.append("first")
    other.join(10)
    assert order == ["first", "second"]


def test_names_are_checked() -> None:
    assert {search.row for search in searches()} == set(QUICK)
    with pytest.raises(ExperimentError, match="no grid for 'disjoint'; did you mean"):
        searches(["disjoint"])
    with pytest.raises(ExperimentError, match="no grid for 'sgd'"):
        searches(methods=["sgd"])


def test_the_best_is_kept_and_nothing_is_done_twice(tmp_path: Path) -> None:
    wanted = searches([ROW], ["gpm", "sgp"])
    how = How(
        "cpu", settings={"steps": 2, "batch": 8, "hidden": "8", "samples": 20}, arrays=blobs()
    )
    said: list[str] = []
    best = run_searches(wanted, tmp_path, how, progress=quiet, tell=said.append)
    assert json.loads((tmp_path / "best.json").read_text()) == best
    assert len(said) == 2
    for search in wanted:
        text = (tmp_path / ROW / search.method / "trials.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        assert len(lines) == len(points(search, experiment(search, how)))
        top = max(line["validation"] for line in lines)
        assert best[ROW][search.method]["validation"] == round(top, 3)
    found = chosen(best, wanted[1:])
    assert found == {ROW: {wanted[1].method: best[ROW][wanted[1].method]["settings"]}}
    steps: list[Event] = []
    assert run_searches(wanted, tmp_path, how, progress=steps.append, tell=said.append) == best
    assert not steps


def test_a_grid_of_ones_own(tmp_path: Path) -> None:
    found = searches([ROW], ["cab-readout"], {"aperture": ["2", "9"], "lift": ["20"]})
    assert [(one.row, one.method) for one in found] == [(ROW, "cab-readout")]
    how = How("cpu", settings={**TINY, "hidden": "8"}, arrays=blobs())
    asked = points(found[0], experiment(found[0], how))
    assert asked == [{"aperture": 2.0, "lift": 20}, {"aperture": 9.0, "lift": 20}]
    best = run_searches(found, tmp_path, how, progress=quiet, tell=lambda text: None)
    assert best[ROW]["cab-readout"]["settings"] in asked


@pytest.mark.parametrize(
    ("rows", "methods", "grid", "said"),
    [
        ([], ["cab"], {"rate": ["1"]}, "needs --rows and --methods"),
        ([ROW], [], {"rate": ["1"]}, "needs --rows and --methods"),
        ([ROW], ["cab"], {"rate": []}, "nothing to try for rate"),
        ([ROW], ["readout"], {"lift": ["3"]}, "no method 'readout' trains a network"),
        (["disjoint"], ["cab"], {"rate": ["1"]}, "unknown benchmark 'disjoint'"),
    ],
)
def test_a_grid_of_ones_own_that_cannot_be(
    rows: list[str], methods: list[str], grid: dict[str, Any], said: str
) -> None:
    with pytest.raises(ExperimentError, match=said):
        searches(rows, methods, grid)
