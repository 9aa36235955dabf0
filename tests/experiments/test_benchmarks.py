"""The benchmarks, and which settings `--preset best` picks for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conceptors.experiments.benchmarks import BENCHMARKS, METHODS_COMPARED, OURS, benchmark_for
from conceptors.experiments.experiment import Experiment
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.presets import PRESETS, preset
from conceptors.experiments.scenarios import SCENARIOS
from conceptors.experiments.tuned import TUNED

BEST = Experiment("disjoint-mnist", ["cab"], [0], preset="best")


@pytest.mark.parametrize(
    ("scenario", "options", "hidden", "name"),
    [
        ("disjoint-mnist", {}, None, "disjoint-mnist-2"),
        ("disjoint-mnist", {"tasks": 2}, "800", "disjoint-mnist-2"),
        ("disjoint-mnist", {}, "800, 800", "disjoint-mnist-2-deep"),
        ("disjoint-mnist", {"tasks": 5}, None, "disjoint-mnist-5"),
        ("disjoint-mnist", {"tasks": 10, "limit": 300}, None, "disjoint-mnist-10"),
        ("permuted-mnist", {}, None, "permuted-mnist-10"),
        ("permuted-mnist", {}, "100,100", "permuted-mnist-10-deep"),
        ("permuted-mnist", {"tasks": 100}, None, "permuted-mnist-100"),
        ("disjoint-fashion", {}, None, "disjoint-fashion-2"),
        ("split-cifar100", {}, None, "split-cifar100-heads"),
        ("split-cifar100", {"heads": True}, None, "split-cifar100-heads"),
        ("split-cifar100", {"heads": False}, None, "split-cifar100-single"),
        # none fits: the scenario's first one, as far as nothing else is said
        ("disjoint-mnist", {"tasks": 1}, None, "disjoint-mnist-2"),
        ("disjoint-mnist", {"tasks": 5}, "30", "disjoint-mnist-5"),
        ("split-cifar100", {"tasks": 20, "heads": False}, "30", "split-cifar100-single"),
    ],
)
def test_which_benchmark_a_run_is(
    scenario: str, options: dict[str, Any], hidden: str | None, name: str
) -> None:
    assert benchmark_for(scenario, options, hidden).name == name
    found = preset("best", scenario, options, hidden)
    assert found == preset(name, scenario)


def test_other_scenarios_have_no_benchmark() -> None:
    with pytest.raises(ValueError, match="no benchmark has the scenario 'rotated-mnist'; did you"):
        benchmark_for("rotated-mnist", {})
    with pytest.raises(ValueError, match="preset 'best' has no settings for scenario 'rotated"):
        preset("best", "rotated-mnist")
    with pytest.raises(ValueError, match=r"'disjoint-mnist-5' has no .*there are: disjoint-mnist$"):
        preset("disjoint-mnist-5", "permuted-mnist")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_run(name: str) -> None:
    benchmark = BENCHMARKS[name]
    kind = SCENARIOS[benchmark.scenario]
    assert benchmark_for(benchmark.scenario, benchmark.options, benchmark.hidden) is benchmark
    assert benchmark.seeds == (5 if kind.data == "cifar100" else 10)
    assert str(benchmark.goal)
    for method in set(METHODS_COMPARED) & set(METHODS):
        made = Experiment(
            benchmark.scenario, [method], [0], preset=benchmark.name, options=benchmark.options
        )
        config = made.config(method)
        if benchmark.hidden and "hidden" in config:
            assert config["hidden"] == benchmark.hidden


def test_every_tuned_setting_is_known() -> None:
    assert set(TUNED) == set(BENCHMARKS)
    trained = METHODS["sgd"].settings_type
    for by_method in TUNED.values():
        assert set(by_method) <= {"*", *METHODS_COMPARED}
        parse_settings(trained, by_method.get("*", {}))
        for method in set(by_method) & set(METHODS):
            assert parse_settings(METHODS[method].settings_type, by_method[method])


def test_ours_are_compared() -> None:
    assert set(OURS) <= set(METHODS_COMPARED)
    assert set(OURS) <= set(METHODS)


def test_the_best_settings_for_two_tasks_are_those_that_were_measured() -> None:
    chosen = {"hidden": "800", "batch": 64, "epochs": 20.0, "smooth": 1.0, "average": 0.9995}
    chosen |= {"local": 5.0}
    own = {"aperture": 23.0, "input_aperture": 270.0, "later_rate": 4.0}
    for options in ({}, {"tasks": 2}):
        config = replace(BEST, options=options).config("cab")
        assert {**config, **chosen, **own} == config
        assert BEST.config("sgd")["epochs"] == 20.0
    found = preset("best", "disjoint-mnist")
    assert found.methods["cab"] == own
    assert found.reference["cab"] == {"mean": 94.91, "std": 0.30, "source": "paper"}
    assert len(found.deviations) == 4


def test_the_network_chooses_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = replace(
        preset("disjoint-mnist-2-deep", "disjoint-mnist"), methods={"cab": {"aperture": 3.0}}
    )
    monkeypatch.setitem(PRESETS["best"], "disjoint-mnist-2-deep", deep)
    assert BEST.config("cab")["aperture"] == 23.0
    for settings in ({"*": {"hidden": "800,800"}}, {"cab": {"hidden": "800,800"}}):
        config = replace(BEST, settings=settings).config("cab")
        assert (config["aperture"], config["hidden"]) == (3.0, "800,800")
    config = replace(BEST, preset="disjoint-mnist-2-deep").config("cab")
    assert (config["aperture"], config["hidden"]) == (3.0, "800,800")
