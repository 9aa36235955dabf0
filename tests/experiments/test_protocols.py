"""The protocols of other papers: what they run, and that they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from conceptors.experiments.benchmarks import BENCHMARKS
from conceptors.experiments.compare import How, experiment, run_all, standing
from conceptors.experiments.events import quiet
from conceptors.experiments.experiment import ExperimentError
from conceptors.experiments.protocols import PROTOCOLS, plan_published
from conceptors.experiments.scenarios import SCENARIOS
from experiments.runs import read
from experiments.tasks import blobs

FIGURES = {
    (b.scenario, b.tasks, b.network, p.method): p.mean
    for b in BENCHMARKS.values()
    for p in b.published
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_says_what_is_run(name: str) -> None:
    protocol = PROTOCOLS[name]
    cell = protocol.cell(2)
    made = experiment(cell, How("cpu", command="conceptors all --published"))
    assert made.seeds == [0, 1]
    assert made.preset is None
    assert made.command == f"conceptors all --published --rows {name}"
    config = made.config(cell.method)
    assert {key: config[key] for key in protocol.settings} == protocol.settings
    if cell.benchmark.hidden:
        assert config["hidden"] == protocol.network
    key = (protocol.scenario, protocol.tasks, protocol.network, cell.method)
    assert FIGURES.get(key, protocol.published.mean) == protocol.published.mean


def test_the_figures_of_relatives_have_a_protocol() -> None:
    relatives = {one.published.method for one in PROTOCOLS.values()}
    assert relatives == {"owm", "gpm", "sgp", "trgp", "codecl"}
    held = {(p.scenario, p.tasks, p.network, p.published.method) for p in PROTOCOLS.values()}
    left = {key for key in FIGURES if key[3] in relatives} - held
    assert left == {("permuted-mnist", 100, "2000,2000", "owm")}  # hours on a GPU


def test_names_are_checked() -> None:
    with pytest.raises(
        ExperimentError, match="unknown protocol 'gpm-permuted'; did you mean 'gpm-"
    ):
        plan_published(["gpm-permuted"])
    with pytest.raises(ExperimentError, match="no protocol has the method 'cab'"):
        plan_published(methods=["cab"])
    found = plan_published(methods=["sgp", "trgp"], seeds=3)
    assert [cell.method for cell in found.cells] == ["trgp", "sgp", "trgp"]
    assert {cell.seeds for cell in found.cells} == {3}


def test_all_run_at_tiny_sizes_and_resume(tmp_path: Path) -> None:
    planned = plan_published(seeds=1).cells
    cells = [cell for cell in planned if SCENARIOS[cell.benchmark.scenario].data == "mnist"]
    how = How("cpu", check=True, arrays=blobs())
    said: list[str] = []
    assert not run_all(cells, tmp_path, how, progress=quiet, tell=said.append)
    for cell in cells:
        assert read(tmp_path / cell.benchmark.name)["summary"][cell.method]["n"] == 1
        assert not standing(experiment(cell, how), tmp_path / cell.benchmark.name).left
    said.clear()
    assert not run_all(cells, tmp_path, how, progress=quiet, tell=said.append)
    assert said == [f"{len(cells)} of {len(cells)} done already"]
