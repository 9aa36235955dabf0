"""The part of the page that holds relatives to their papers."""

from __future__ import annotations

from pathlib import Path

import pytest

from conceptors.experiments.compare import How, experiment
from conceptors.experiments.protocols import PROTOCOLS
from conceptors.experiments.results import Results, summarise
from conceptors.report.papers_page import BEGIN, END, body, read, write
from conceptors.report.standings_page import between
from report import compared

HOME = Path(__file__).parents[2]
PAGE, RESULTS = HOME / "docs" / "comparison.md", HOME / "results" / "published"
GPM, OWM = "gpm-permuted-mnist-10-deep", "owm-disjoint-mnist-2"


def results(name: str, finals: list[float], rate: float | None = None) -> Results:
    """Runs of a protocol that ended so."""
    cell = PROTOCOLS[name].cell(len(finals))
    config = experiment(cell, How("cpu")).config(cell.method)
    config |= {} if rate is None else {"rate": rate}
    runs = [
        compared.run(cell.method, seed, final, cell.benchmark.tasks, 0.2)
        for seed, final in enumerate(finals)
    ]
    for run in runs:
        run.config.update(config)
    return Results(
        scenario=cell.benchmark.scenario,
        command=f"conceptors all --published --rows {name}",
        runs=runs,
        summary=summarise(runs),
        environment={"device_name": "a fast machine", "torch": "2.13.0"},
    )


def test_figures_are_held_against_published_ones(tmp_path: Path) -> None:
    compared.write(tmp_path, {GPM: results(GPM, [93.6, 93.8]), OWM: results(OWM, [95.0])})
    page = tmp_path / "page.md"
    page.write_text(f"by hand\n\n{BEGIN}\nold\n{END}\nmore\n")
    assert write(tmp_path, page) == page
    text = page.read_text("utf-8")
    assert text.startswith("by hand\n\n")
    assert text.endswith(f"{END}\nmore\n")
    assert "old" not in text
    lines = text.splitlines()
    assert (
        "| gpm | permuted-mnist, 10 tasks | 784-100-100-10 | 93.91 ± 0.16 (Saha et al. 2021) | "
        "93.70 ± 0.14 | −0.21 | yes | 2 | −0.20 | −3.00 |" in lines
    )
    assert (
        "| owm | disjoint-mnist, 2 tasks | 784-800-10 | 96.35 (Zeng et al. 2019) | 95.00 | −1.35 "
        "| no, by one seed | 1 | −0.20 | – |" in lines
    )
    assert sum("not run yet" in line for line in lines) == len(PROTOCOLS) - 2
    assert any(line.startswith(f"- `{OWM}` is 1.35 below what is published.") for line in lines)
    assert f"- Made by `conceptors all --published --rows {GPM}` on a fast machine" in text


def test_results_with_other_settings_are_refused(tmp_path: Path) -> None:
    compared.write(tmp_path, {GPM: results(GPM, [93.6], rate=0.1)})
    with pytest.raises(ValueError, match=r"other settings than the protocol's \(rate=0.1, not"):
        read(tmp_path, PROTOCOLS[GPM])


def test_the_committed_part_is_what_the_committed_results_make() -> None:
    held = PAGE.read_text("utf-8")
    tables = {name: read(RESULTS, protocol) for name, protocol in PROTOCOLS.items()}
    again = between(held, body(tables), PAGE, BEGIN, END)
    assert held == again, "make it anew with: conceptors all --published --page"
