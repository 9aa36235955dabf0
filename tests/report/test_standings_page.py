"""The page of the comparison, and that the committed one is what its results make."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from conceptors.experiments.benchmarks import BENCHMARKS
from conceptors.experiments.results import Failure
from conceptors.experiments.step_times import StepTimes
from conceptors.report.standings import read_tables
from conceptors.report.standings_page import (
    BEGIN,
    END,
    FIGURES,
    between,
    body,
    figure,
    overview,
    section,
    write,
)
from conceptors.report.theme import svg
from report import compared, sample
from report.compared import spread

HOME = Path(__file__).parents[2]
PAGE, RESULTS = HOME / "docs" / "comparison.md", HOME / "results" / "comparison"
FOUND = {
    "disjoint-mnist-2": compared.results(
        "disjoint-mnist-2",
        {
            "sgd": spread(48.0),
            "owm": spread(96.5),
            "cab": spread(97.4),
            "readout": spread(98.0, 6),
            "joint": spread(98.6),
        },
        {"sgd": 40.0, "cab": 0.2},
    ),
    "permuted-mnist-10": compared.results("permuted-mnist-10", {"cab": spread(95.0)}),
}


@pytest.fixture
def made(tmp_path: Path) -> str:
    compared.write(tmp_path / "results", FOUND)
    page = tmp_path / "docs" / "comparison.md"
    files = write(tmp_path / "results", page)
    assert files == [page, *(page.parent / FIGURES / f"{name}.svg" for name in FOUND)]
    return page.read_text("utf-8")


def rows(text: str, first: str) -> dict[str, list[str]]:
    """The table below a line that begins so, by the first column."""
    below = (
        text[text.index(first) :].split("\n\n| ", 1)[1].split("\n\n", maxsplit=1)[0].splitlines()
    )
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in below[2:]]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in cells}


def test_methods_x_benchmarks(made: str) -> None:
    first, second = rows(made, "# Comparison"), rows(made, "| *reached* |")
    rest = ["*published, best*", "*the same with \\**", "*our goal*", "*reached*"]
    assert list(first) == ["sgd", "owm", "cab", "readout†", "joint‡", *rest]
    assert list(second) == rest  # nothing was run there
    assert all(len(row) == 5 for row in [*first.values(), *second.values()])
    names = list(BENCHMARKS)
    two, permuted = names.index("disjoint-mnist-2"), names.index("permuted-mnist-10")
    assert first["cab"][two] == "97.40 ± 0.11"
    assert first["readout†"][two] == "**98.00 ± 0.11** (n = 6)"
    assert first["joint‡"][two] == "98.60 ± 0.11"  # a bound is never the best
    assert first["cab"][permuted] == "**95.00 ± 0.11**"
    assert first["owm"][permuted] == "–"
    assert first["*published, best*"][two] == "96.35 (owm)"
    heads = names.index("split-cifar100-heads") - 5
    assert second["*the same with \\**"][heads] == "77.21 (codecl\\*)"
    reached = first["*reached*"]
    assert (reached[two], reached[permuted]) == ("yes", "no")
    assert reached[names.index("disjoint-mnist-5")] == "–"


def test_one_benchmark(made: str) -> None:
    table = rows(made, "### disjoint-mnist-2\n")
    head = "seeds | forgetting | backward transfer | numbers | seconds | step | cab is |"
    assert head in made
    assert table["owm"] == [
        *("96.50 ± 0.11", "10", "0.00", "0.00", "1,234,567", "4.00", "–", "ahead")
    ]
    assert table["cab"] == ["97.40 ± 0.11", "10", "0.20", "−0.20", "–", "3.00", "–", ""]
    assert table["readout†"][4:] == ["1,234,567", "4.00", "–", ""]
    assert table["imm, Lee et al. 2017, cited"] == ["94.12 ± 0.27", *["–"] * 6, "ahead"]
    assert "cab, the paper" in table
    assert "Goal: 97.3. It is reached." in made
    assert "Further down, not drawn: sgd (48.00)." in made
    assert (
        "Made by `conceptors all --device cuda --rows disjoint-mnist-2` on a fast machine" in made
    )
    assert f"]({FIGURES.as_posix()}/disjoint-mnist-2.svg)" in made
    assert f"{FIGURES.as_posix()}/disjoint-mnist-5.svg" not in made
    assert "### disjoint-mnist-5\n\ndisjoint-mnist, 5 tasks, network 800" in made


def test_steps_and_where_they_were_timed(tmp_path: Path) -> None:
    methods = {name: spread(97.0) for name in ("sgd", "cab", "owm")}
    found = compared.results("disjoint-mnist-2", methods)
    for run in found.runs:
        run.extras["machine"] = "a slow machine" if run.method == "owm" else "a fast machine"
    compared.write(tmp_path, {"disjoint-mnist-2": found})
    ratios = {"sgd": 1.0, "cab": 1.5}
    times = StepTimes(ratios, 0.1, 10, "a third", "2.13.0", "conceptors all --steps")
    times.write(tmp_path / "disjoint-mnist-2" / "steps.json")
    (table,) = read_tables(tmp_path, ["disjoint-mnist-2"])
    shown = rows("\n\n".join(section(table)), "### disjoint-mnist-2\n")
    assert (shown["cab"][6], shown["owm"][6], shown["sgd"][6]) == ("1.50 ×", "–", "1.00 ×")
    assert table.made.endswith(
        "on a fast machine, torch 2.13.0; owm on a slow machine; "
        "steps timed by `conceptors all --steps` on a third, 10 seeds at once"
    )


def test_runs_that_shared_a_machine_show_no_times(tmp_path: Path) -> None:
    found = compared.results("disjoint-mnist-2", {"sgd": spread(50.0), "cab": spread(97.0)})
    for run in found.runs:
        if run.method == "cab":
            run.extras["shared"] = True
    compared.write(tmp_path, {"disjoint-mnist-2": found})
    (table,) = read_tables(tmp_path, ["disjoint-mnist-2"])
    shown = rows("\n\n".join(section(table)), "### disjoint-mnist-2\n")
    assert (shown["cab"][5], shown["sgd"][5]) == ("–", "2.00")


def test_seeds_that_came_to_no_end_are_told(tmp_path: Path) -> None:
    found = compared.results("disjoint-mnist-2", {"cab": spread(97.0), "ewc": spread(70.0, 3)})
    found.failed = [Failure("ewc", seed, "diverged in task 2 of 2", {}) for seed in (3, 4)]
    compared.write(tmp_path, {"disjoint-mnist-2": found})
    (table,) = read_tables(tmp_path, ["disjoint-mnist-2"])
    assert "(n = 3, 2 failed) |" in overview([table])
    shown = rows("\n\n".join(section(table)), "### disjoint-mnist-2\n")
    assert (shown["ewc"][1], shown["cab"][1]) == ("3, 2 failed", "10")
    found.failed = [Failure("sgd", seed, "diverged in task 1 of 2", {}) for seed in range(3)]
    found.failed += [Failure("trgp", 0, "diverged in task 1 of 2", {})]
    compared.write(tmp_path, {"disjoint-mnist-2": found})
    (table,) = read_tables(tmp_path, ["disjoint-mnist-2"])
    assert "| sgd | 3 failed |" in overview([table])
    assert "| trgp\\* | 1 failed |" in overview([table])  # also marked
    shown = rows("\n\n".join(section(table)), "### disjoint-mnist-2\n")
    assert shown["sgd"][:2] == ["–", "0, 3 failed"]
    assert len(shown["sgd"]) == len(shown["cab"])


def test_what_nothing_chosen_costs_is_told(tmp_path: Path) -> None:
    methods = {"cab": spread(97.0), "shield": spread(96.4), "readout": spread(98.0)}
    compared.write(tmp_path, {"disjoint-mnist-2": compared.results("disjoint-mnist-2", methods)})
    found = overview(read_tables(tmp_path, ["disjoint-mnist-2"]))
    assert "above the best chosen* | −0.60 (shield) |" in found
    methods |= {"cab-readout": spread(97.2), "shield-readout": spread(97.3)}
    compared.write(tmp_path, {"disjoint-mnist-2": compared.results("disjoint-mnist-2", methods)})
    found = overview(read_tables(tmp_path, ["disjoint-mnist-2"]))
    assert "above the best chosen* | +0.10 (shield-readout) |" in found


def test_the_figure_has_every_seed(made: str, tmp_path: Path) -> None:
    path = tmp_path / "docs" / FIGURES / "disjoint-mnist-2.svg"
    assert ET.parse(path).getroot().tag.endswith("svg")
    said = tips(path.read_text("utf-8"))
    assert len([tip for tip in said if tip.startswith("cab, seed")]) == 10
    assert "owm, published: 96.35 %" in said
    assert "joint‡, mean: 98.60 %" in said
    assert "goal: 97.30 %" in said
    assert not [tip for tip in said if tip.startswith("sgd")]


def test_what_is_written_by_hand_stays(made: str, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "comparison.md"
    page.write_text(f"# Mine\n\nabove\n\n{BEGIN}\nold\n{END}\n\nbelow\n", "utf-8")
    write(tmp_path / "results", page)
    text = page.read_text("utf-8")
    assert text.startswith(f"# Mine\n\nabove\n\n{BEGIN}\n\n| ")
    assert text.endswith(f"\n{END}\n\nbelow\n")
    assert "old" not in text.splitlines()
    write(tmp_path / "results", page)
    assert page.read_text("utf-8") == text
    assert made.split(BEGIN)[1].split(END, maxsplit=1)[0] == text.split(BEGIN)[1].split(END)[0]


@pytest.mark.parametrize("held", ["nothing", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_markers_is_left_alone(held: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(held, "utf-8")
    with pytest.raises(ValueError, match=r"page\.md must have these two lines once"):
        write(tmp_path, page)
    assert page.read_text("utf-8") == held
    assert list(tmp_path.iterdir()) == [page]


def test_figures_of_results_that_are_gone_go_too(made: str, tmp_path: Path) -> None:
    assert made
    (tmp_path / "results" / "disjoint-mnist-2" / "results.json").unlink()
    files = write(tmp_path / "results", tmp_path / "docs" / "comparison.md")
    assert sorted(files[1:]) == sorted((tmp_path / "docs" / FIGURES).iterdir())


def test_any_name_fits_into_a_table(tmp_path: Path) -> None:
    names = [sample.HOSTILE, "a | b\n# c", "*" * 80]
    found = compared.results("disjoint-mnist-2", {name: [96.0, 97.0] for name in names})
    compared.write(tmp_path / "results", {"disjoint-mnist-2": found})
    write(tmp_path / "results", tmp_path / "comparison.md", ["disjoint-mnist-2"])
    text = (tmp_path / "comparison.md").read_text("utf-8")
    assert not re.search(r"(?<!\\)<script", text)
    table = rows(text, "### disjoint-mnist-2")
    assert [len(row) for row in table.values()] == [8] * 6  # three of ours, three published


# --- the committed page ------------------------------------------------------------------


def tips(text: str) -> list[str]:
    """What the marks of a figure say, in any order."""
    return sorted(re.findall(r'aria-label="([^"]*%)"', text))


def test_the_committed_page_is_what_the_committed_results_make() -> None:
    held = PAGE.read_text("utf-8")
    again = between(held, body(read_tables(RESULTS)), PAGE)
    assert held == again, "make it anew with: conceptors all --page"


def test_the_committed_figures_are_what_the_committed_results_make() -> None:
    tables = {t.benchmark.name: t for t in read_tables(RESULTS) if t.reached}
    files = {path.stem: path for path in (PAGE.parent / FIGURES).glob("*.svg")}
    assert set(files) == set(tables), "make them anew with: conceptors all --page"
    for name, path in files.items():
        assert tips(path.read_text("utf-8")) == tips(svg(figure(tables[name])))
