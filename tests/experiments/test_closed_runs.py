"""Experiments with methods in closed form: images, heads, results, the report, tuning."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from conceptors.cli.commands import table
from conceptors.estimators.lift import RandomFeatures
from conceptors.estimators.patches import PatchFeatures
from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, explain_settings, parse_settings
from conceptors.experiments.results import Results
from conceptors.experiments.runner import Experiment
from conceptors.experiments.scenarios import build
from conceptors.experiments.trials import validation_accuracies
from experiments.closed import CLOSED, known
from experiments.learners import CPU
from experiments.runs import FAST, quietly, timeless
from experiments.tasks import blobs

NAMES = list(dict.fromkeys(name for name, _ in CLOSED))
SMALL: dict[str, Any] = {"lift": 30, "filters": 8, "patch": 5, "grid": 2}
SET = {"*": SMALL}


pytestmark = pytest.mark.usefixtures("fake")


# --- what is looked at -------------------------------------------------------------------


@pytest.mark.parametrize("method", NAMES)
def test_all_methods_may_look_at_the_same_patches(method: str) -> None:
    scenario = build("disjoint-mnist", [3], tasks=2)
    kind = METHODS[method]
    given = {**known(method, SMALL), "features": "patches"}
    settings = parse_settings(kind.settings_type, given)
    found: Any = kind(scenario, settings, CPU, quiet)
    found.learn(0)
    looks = found.heads[0].looks
    assert isinstance(looks, PatchFeatures)
    assert looks.filters.shape == (8, 25)
    before = looks.filters.clone()
    found.learn(1)
    assert torch.equal(looks.filters, before)  # of the first task alone
    other: Any = METHODS["ncm"]
    beside = other(scenario, parse_settings(other.settings_type, _patches()), CPU, quiet)
    beside.learn(0)
    assert torch.equal(beside.heads[0].looks.filters, before)
    assert float(found.test().mean()) > 50


def _patches() -> dict[str, Any]:
    return {"features": "patches", "filters": 8, "patch": 5, "grid": 2}


@pytest.mark.parametrize(
    ("scenario", "smooth"),
    [("disjoint-mnist", (1, 28, 28)), ("rotated-fashion", (1, 28, 28)), ("permuted-mnist", None)],
)
def test_features_are_smooth_where_pixels_are_where_they_were(
    scenario: str, smooth: tuple[int, ...] | None
) -> None:
    kind: Any = METHODS["readout"]
    settings = parse_settings(kind.settings_type, {"lift": 30})
    found = kind(build(scenario, [0], tasks=2), settings, CPU, quiet)
    lift = found.heads[0].readout.lift
    assert isinstance(lift, RandomFeatures)
    assert lift.image == smooth
    assert (lift.unit, lift.spread) == ((True, 1.0) if smooth else (False, 0.7))
    plain = parse_settings(kind.settings_type, {"lift": 30, "smooth": 0.0, "spread": 2.0})
    lift = kind(build(scenario, [0], tasks=2), plain, CPU, quiet).heads[0].readout.lift
    assert (lift.image, lift.unit, lift.spread) == (None, False, 2.0)


@pytest.mark.parametrize("method", ["readout", "slda", "acil"])  # images take their time
def test_colour_images_with_one_head_or_several(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "conceptors.experiments.scenarios.images.load", partial(blobs, train=1100, test=300)
    )
    accuracies = []
    for heads in (True, False):
        wanted = Experiment(
            "split-cifar100",
            [method],
            [0],
            options={"tasks": 2, "heads": heads},
            settings={method: {**known(method, SMALL), "features": "patches"}},
        )
        accuracies.append(quietly(wanted, tmp_path / str(heads))["summary"][method]["mean"])
    assert accuracies[0] >= accuracies[1] > 5  # 1 is chance


# --- runs --------------------------------------------------------------------------------


def test_results_are_written_repeat_and_resume(tmp_path: Path) -> None:
    wanted = Experiment("disjoint-mnist", NAMES, [0, 1], settings=SET, options={"tasks": 5})
    found = quietly(wanted, tmp_path / "a")
    assert [run["method"] for run in found["runs"]] == [m for m in NAMES for _ in range(2)]
    for run in found["runs"]:
        assert set(run["config"]) == set(METHODS[run["method"]].settings_type.__dataclass_fields__)
        assert not {"epochs", "rate", "hidden", "batch"} & set(run["config"])
        assert run["stored_numbers"] > 0
        assert run["final_accuracy"] > 50
    again = quietly(wanted, tmp_path / "a")
    assert timeless(again) == timeless(found)
    assert timeless(quietly(wanted, tmp_path / "b")) == timeless(found)


def test_they_run_beside_trained_networks_with_a_preset(tmp_path: Path) -> None:
    """Its network's settings are not for them, though the names may be the same."""
    own = {"*": FAST, "readout": {"lift": 40}}
    wanted = Experiment("disjoint-mnist", ["sgd", "readout"], [0], "paper", settings=own)
    found = quietly(wanted, tmp_path)
    configs = {run["method"]: run["config"] for run in found["runs"]}
    assert configs["sgd"]["activation"] == "sigmoid"
    assert configs["readout"]["activation"] == "fourier"
    lines = table(Results.from_json(found)).splitlines()
    assert lines[0].split()[-2:] == ["numbers", "known"]
    kept = found["summary"]["readout"]["stored_numbers"]
    rows = {line.split()[0]: line.split() for line in lines[2:]}
    assert rows["readout"][-1] == f"{kept:,}"
    assert rows["sgd"][-1] == "-"
    assert "stored_numbers" not in found["summary"]["sgd"]


def test_the_page_says_what_is_stored_and_why_nothing_is_forgotten(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    from conceptors.report.page import render

    wanted = Experiment(
        "disjoint-mnist", ["readout", "sgd"], [0], settings={"*": {**FAST, **SMALL}}
    )
    found = quietly(wanted, tmp_path)
    page = render({"results.json": found})
    assert f"{found['summary']['readout']['stored_numbers']:,}" in page
    assert "Why the readout does not forget" in page
    without = quietly(
        Experiment("disjoint-mnist", ["sgd"], [0], settings={"*": FAST}), tmp_path / "s"
    )
    page = render({"results.json": without})
    assert "Why the readout does not forget" not in page
    assert "Stored" not in page


@pytest.mark.parametrize("method", NAMES)
def test_only_own_settings_are_explained(method: str) -> None:
    lines = explain_settings(METHODS[method].settings_type)
    names = {line.split()[0] for line in lines[1:]}
    assert {"features", "filters", "patch", "grid"} <= names
    assert not {"epochs", "rate", "hidden", "batch", "loss", "momentum"} & names


@pytest.mark.parametrize("method", NAMES)
def test_they_can_be_tuned(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Any) -> None:
        raise AssertionError("test data used")

    monkeypatch.setattr(METHODS[method], "test", never)
    own = {method: known(method, SMALL)}
    wanted = Experiment("disjoint-mnist", [method], [0], settings=own)
    (score,) = validation_accuracies(wanted, quiet)
    assert score > 50
