"""Figures: which files there are, that they are what they say, and that any name can be drawn."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

from conceptors.report import plots, printing, projected_images, write_figures
from report import sample


@pytest.fixture
def only_svg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "FORMATS", ("svg",))


def test_all_figures_in_all_formats(tmp_path: Path) -> None:
    written = write_figures(sample.make(2, 2, ("cab", "sgd")), tmp_path / "figures")
    names = ["accuracy", "matrices", "spectra-cab", "quota", "similarity"]
    assert [p.name for p in written] == [f"{n}.{e}" for n in names for e in ("svg", "pdf", "png")]
    heads = {".pdf": b"%PDF-", ".png": b"\x89PNG\r\n"}
    for file in written:
        if file.suffix == ".svg":
            assert ET.parse(file).getroot().tag.endswith("svg")
        else:
            assert file.read_bytes().startswith(heads[file.suffix])
    assert sorted(written) == sorted((tmp_path / "figures").iterdir())  # nothing else is left


@pytest.mark.usefixtures("only_svg")
def test_only_what_there_are_numbers_for(tmp_path: Path) -> None:
    written = write_figures(sample.make(1, 1, ("sgd",), bare=True), tmp_path)
    assert [p.name for p in written] == ["accuracy.svg", "matrices.svg"]


@pytest.mark.usefixtures("only_svg")
def test_the_same_results_make_the_same_files(tmp_path: Path) -> None:
    results = sample.make(2, 2, ("cab", "sgd"))
    first = write_figures(results, tmp_path / "a")
    second = write_figures(results, tmp_path / "b")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


@pytest.mark.usefixtures("only_svg")
def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    results = sample.hostile()
    written = write_figures(results, tmp_path)
    assert len({p.name for p in written}) == len(written) == 4 + len(results["summary"])
    for file in written:
        assert file.parent == tmp_path
        ET.parse(file)


@pytest.mark.usefixtures("only_svg")
def test_many_tasks(tmp_path: Path) -> None:
    assert len(write_figures(sample.make(100, 2, ("cab",), disjoint=False), tmp_path)) == 5


def test_axes_have_units_and_legends_quotas() -> None:
    results = sample.make(2, 2, ("cab", "sgd"))
    accuracy = plots.accuracy(results).axes[0]
    assert accuracy.get_xlabel() == "number of tasks learned"
    assert accuracy.get_ylabel() == "accuracy over tasks seen so far (%)"
    spectra = plots.spectra(results, "cab").axes
    assert [axes.get_title(loc="center") or axes.get_title(loc="left") for axes in spectra] == [
        "(a) input",
        "(b) hidden",
    ]
    legend = spectra[0].get_legend()
    assert legend is not None
    quota = results["runs"][0]["quota"]["input"]
    assert legend.get_texts()[0].get_text() == f"after task 1: {quota[0]:.2f}"


def test_bad_results_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="schema is missing"):
        write_figures({}, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_projected_images(tmp_path: Path) -> None:
    x = torch.rand(4, 28, 28)
    written = projected_images(x, 0.9 * x, 0.1 * x, tmp_path / "disjoint", "digits 0 to 4")
    assert [p.name for p in written] == ["disjoint.svg", "disjoint.pdf", "disjoint.png"]


@pytest.mark.usefixtures("only_svg")
def test_projected_images_takes_a_name_with_an_ending(tmp_path: Path) -> None:
    x = np.zeros((1, 4, 4))
    assert projected_images(x, x, x, tmp_path / "a.b.png")[0].name == "a.b.svg"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 4, 4), (1, 4, 4), (2, 4, 4)), "must have the same shape"),
        (((4, 4), (4, 4), (4, 4)), r"originals must be images \[k, height, width\], got \[4, 4\]"),
        (((0, 4, 4), (0, 4, 4), (0, 4, 4)), "originals must be images"),
    ],
)
def test_images_that_do_not_fit(
    shapes: tuple[tuple[int, ...], ...], message: str, tmp_path: Path
) -> None:
    x, c, f = (np.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError, match=message):
        projected_images(x, c, f, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_images_must_be_finite(tmp_path: Path) -> None:
    x = np.zeros((1, 4, 4))
    with pytest.raises(ValueError, match="free has NaN or infinite pixels"):
        projected_images(x, x, np.full_like(x, np.nan), tmp_path / "a")
