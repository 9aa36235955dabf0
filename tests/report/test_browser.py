"""The page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conceptors.report import write_page
from report import sample

CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "one": lambda: sample.make(1, 1, bare=True),
    "two": lambda: sample.make(2, 3),
    "ten": lambda: sample.make(10, 2, disjoint=False),
    "hundred": lambda: sample.make(100, 1, ("cab", "sgd"), disjoint=False),
    "hostile": sample.hostile,
}
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: write_page(make(), folder / name / "index.html") for name, make in CASES.items()}


@pytest.fixture
def show(visit: Open, files: dict[str, Path]) -> Open:
    """Opens a page by its name; see `visit`."""
    return lambda name, *given, **options: visit(files[name], *given, **options)


def order(page: Any) -> list[str]:
    found: list[str] = page.locator("table.summary tbody th .name").all_inner_texts()
    return found


def sorted_by(page: Any) -> dict[str, str]:
    found: dict[str, str] = page.eval_on_selector_all(
        "table.summary th[aria-sort]:not([aria-sort=none])",
        "ths => Object.fromEntries(ths.map(t => [t.querySelector('button').id, t.ariaSort]))",
    )
    return found


@pytest.mark.parametrize("name", CASES)
def test_renders(name: str, show: Open) -> None:
    page = show(name)
    assert page.title().endswith("· conceptors")
    assert page.title() != "owned"
    sizes = page.eval_on_selector_all(
        "svg.chart", "all => all.map(s => { const b = s.getBoundingClientRect();"
        " return Math.min(b.width, b.height); })"
    )  # fmt: skip
    assert sizes
    assert min(sizes) > 15
    assert page.evaluate("document.images.length") == 0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [360, 800, 1600])
def test_never_wider_than_the_window(name: str, width: int, show: Open) -> None:
    page = show(name, width)
    for details in page.locator("details").all()[:6]:
        details.evaluate("d => d.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_sorting_by_click(show: Open) -> None:
    page = show("two")
    assert order(page) == ["joint", "cab", "ewc", "sgd", "imm"]
    assert sorted_by(page) == {"sort-accuracy": "descending"}
    page.click("#sort-accuracy")
    assert order(page) == ["sgd", "ewc", "cab", "joint", "imm"]  # what was not run stays last
    assert sorted_by(page) == {"sort-accuracy": "ascending"}
    page.click("#sort-method")
    assert order(page) == ["cab", "ewc", "imm", "joint", "sgd"]
    assert sorted_by(page) == {"sort-method": "ascending"}
    page.click("#sort-reference")
    assert order(page)[:3] == ["cab", "imm", "ewc"]


def test_sorting_by_keyboard(show: Open) -> None:
    page = show("two")
    page.focus("#sort-method")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "sort-accuracy"
    page.keyboard.press("Enter")
    assert sorted_by(page) == {"sort-accuracy": "ascending"}
    page.keyboard.press("Space")
    assert sorted_by(page) == {"sort-accuracy": "descending"}
    assert page.inner_text("#live") == "Sorted by Accuracy, descending"


def test_numbers_are_sorted_as_numbers(show: Open) -> None:
    page = show("two")
    page.click("#sort-seconds")
    values = page.eval_on_selector_all(
        "table.summary tbody tr", "rows => rows.map(r => r.cells[5].dataset.v ?? null)"
    )
    known = [float(v) for v in values if v is not None]
    assert known == sorted(known)
    assert values[-1] is None


def _ground(page: Any) -> str:
    found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return found


@pytest.mark.parametrize("system", ["light", "dark"])
def test_theme(system: str, show: Open) -> None:
    page = show("two", color_scheme=system)
    grounds = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}
    other = {"light": "dark", "dark": "light"}[system]
    assert _ground(page) == grounds[system]
    button = page.get_by_role("button", name="Dark theme")
    assert button.get_attribute("aria-pressed") == str(system == "dark").lower()
    button.click()
    assert _ground(page) == grounds[other]
    assert button.get_attribute("aria-pressed") == str(other == "dark").lower()
    page.reload()
    assert _ground(page) == grounds[other]  # remembered
    page.focus("#theme")
    page.keyboard.press("Enter")
    assert _ground(page) == grounds[system]


def test_print_is_light_and_without_controls(show: Open) -> None:
    page = show("ten", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert _ground(page) == "rgb(255, 255, 255)"
    assert not page.is_visible("nav")
    assert not page.is_visible("#theme")
    assert page.pdf(format="A4").startswith(b"%PDF-")


def test_values_under_the_pointer(show: Open) -> None:
    page = show("two")
    cell = page.locator("#matrices svg.chart").first.locator(".tip").nth(2)
    cell.scroll_into_view_if_needed()
    cell.hover()
    tip = page.inner_text("#tip")
    assert tip.startswith("after task 2, tested on task 1 (digits 0–4): ")
    page.mouse.move(1, 1)
    assert not page.is_visible("#tip")


def test_values_by_arrow_keys(show: Open) -> None:
    page = show("ten")
    page.focus("#matrices svg.chart")
    for key, start in (
        ("ArrowRight", "after task 1, tested on task 1 "),
        ("ArrowRight", "after task 1, tested on task 2 "),
        ("ArrowDown", "after task 2, tested on task 2 "),
        ("ArrowUp", "after task 1, tested on task 2 "),
        ("End", "after task 10, tested on task 10 "),
        ("ArrowRight", "after task 10, tested on task 10 "),  # the end is the end
        ("Home", "after task 1, tested on task 1 "),
    ):
        page.keyboard.press(key)
        assert page.inner_text("#tip").startswith(start)
        assert page.inner_text("#live") == page.inner_text("#tip")
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")
    page.focus("#accuracy svg.chart")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tip").startswith("cab, after task 1: ")


def test_scrolling_keeps_the_place_in_a_chart(show: Open) -> None:
    page = show("ten")  # focus scrolls, and the browser says so later
    page.focus("#matrices svg.chart")
    page.keyboard.press("ArrowRight")
    before = page.locator("#tip").bounding_box()["y"]
    page.evaluate("scrollBy({top: 40, behavior: 'instant'})")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.locator("#tip").bounding_box()["y"] == pytest.approx(before - 40, abs=2)
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tip").startswith("after task 1, tested on task 2 ")


def test_charts_follow_the_theme(show: Open) -> None:
    page = show("two", color_scheme="dark")
    text = page.locator("#accuracy svg.chart text").first
    assert text.evaluate("t => getComputedStyle(t).fill") == "rgb(154, 164, 177)"
    page.click("#theme")
    assert text.evaluate("t => getComputedStyle(t).fill") == "rgb(89, 98, 110)"


@pytest.mark.parametrize("width", [390, 1280])
def test_the_summary_fits_or_says_that_it_scrolls(width: int, show: Open) -> None:
    page = show("two", width)
    assert page.is_visible(".swipe") == (width == 390)
    wide = page.evaluate("(t => t.scrollWidth > t.clientWidth)(document.querySelector('.scroll'))")
    assert wide == (width == 390)


def test_every_control_is_reached_by_tab(show: Open) -> None:
    page = show("two")
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "sort-method", "sort-seeds", "A", "svg", "SUMMARY"} <= reached


def test_without_scripts(show: Open) -> None:
    page = show("two", java_script_enabled=False)
    assert page.locator("svg.chart title").count() > 20
    assert not page.is_visible("#theme")
    assert page.is_visible("table.summary")


def test_hostile_names_do_nothing(show: Open) -> None:
    page = show("hostile")
    for button in page.locator("table.summary th button").all():
        button.click()
    for chart in page.locator("svg.chart[tabindex]").all()[:8]:
        chart.focus()
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(100)
    assert page.title() != "owned"
    assert sample.HOSTILE in page.locator("table.summary tbody").inner_text()
