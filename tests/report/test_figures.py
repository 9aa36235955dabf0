"""Figures: which files there are, that they are what they say, and that any name can be drawn."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

from conceptors.report import projected_images, theme, write_figures
from report import sample


@pytest.fixture
def only_svg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theme, "FORMATS", ("svg",))


def test_all_figures_in_all_formats(tmp_path: Path) -> None:
    written = write_figures(sample.make(2, 2, ("cab", "sgd")), tmp_path / "figures")
    names = [
        "accuracy",
        "forgetting",
        "matrices",
        "learning",
        "loss",
        "quota",
        "spectra",
        "similarity",
    ]
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
    assert len({p.name for p in written}) == len(written) == 8
    for file in written:
        assert file.parent == tmp_path
        ET.parse(file)


@pytest.mark.usefixtures("only_svg")
def test_many_tasks(tmp_path: Path) -> None:
    assert len(write_figures(sample.make(100, 2, ("cab",), disjoint=False), tmp_path)) == 8


def _said(file: Path) -> list[str]:
    """All texts of an SVG."""
    return [element.text or "" for element in ET.parse(file).iter() if element.tag.endswith("text")]


@pytest.mark.usefixtures("only_svg")
def test_axes_have_units_and_legends_are_whole(tmp_path: Path) -> None:
    results = sample.make(10, 2, ("cab", "sgd"), disjoint=False)
    found = {file.stem: _said(file) for file in write_figures(results, tmp_path)}
    assert {"number of tasks learned", "accuracy on test images (%)"} <= set(found["accuracy"])
    assert {f"task {k}" for k in range(1, 11)} <= set(found["forgetting"])
    assert {str(k) for k in range(1, 11)} <= set(found["accuracy"])
    quota = np.mean([run["quota"]["input"] for run in results["runs"][:2]], axis=0)
    assert f"task 1: quota {quota[0]:.2f}" in found["spectra"]


@pytest.mark.usefixtures("only_svg")
def test_two_tasks_are_bars(tmp_path: Path) -> None:
    accuracy = write_figures(sample.make(2, 1, ("sgd",), bare=True), tmp_path)[0]
    text = accuracy.read_text("utf-8")
    assert 'aria-roledescription="bar"' in text
    assert "line mark" not in text


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
