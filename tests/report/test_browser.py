"""The page in a real browser."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conceptors.report import write_page
from report import sample

CASES = {
    "one": sample.make(1, 1, bare=True),
    "two": sample.make(2, 3),
    "ten": sample.make(10, 2, ("cab", "sgd")),
    "hostile": sample.hostile(),
}
Open = Callable[..., Any]
Files = dict[str, Path]
SMALLEST = """() => Math.min(...[...document.querySelectorAll("main *")].filter((element) =>
  element.getClientRects().length && !element.closest("title") &&
  [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
).map((element) => {
  const svg = element.ownerSVGElement, size = parseFloat(getComputedStyle(element).fontSize);
  return svg ? size * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : size;
}))"""
GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("pages")
    return {
        name: write_page(results, folder / name / "index.html") for name, results in CASES.items()
    }


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [390, 1600])
def test_fits_the_window_and_is_legible(name: str, width: int, visit: Open, files: Files) -> None:
    page = visit(files[name], width)
    assert page.title().endswith("· conceptors")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(SMALLEST) >= 11
    assert page.locator("svg.chart[aria-label]").count() == page.locator("svg.chart").count() > 1
    ids = page.eval_on_selector_all("[id]", "all => all.map(e => e.id)")
    links = page.eval_on_selector_all("a", "all => all.map(a => a.getAttribute('href'))")
    assert len(ids) == len(set(ids))
    assert set(links) <= {"results.json", *(f"#{name}" for name in ids)}
    is_cut = "(t => t.scrollWidth > t.clientWidth)(document.querySelector('.scroll'))"
    assert page.is_visible(".swipe") == page.evaluate(is_cut)
    for button in page.locator("table.summary th button").all():
        button.click()  # whatever the names: `visit` sees errors, requests and dialogs


def test_sorting(visit: Open, files: Files) -> None:
    page = visit(files["two"])

    def order() -> str:
        return " ".join(page.locator("table.summary tbody th .name").all_inner_texts())

    assert order() == "joint cab ewc sgd"
    page.click("#sort-method")
    assert order() == "cab ewc joint sgd"
    assert page.inner_text("#live") == "Sorted by Method, ascending"


def test_theme(visit: Open, files: Files) -> None:
    page = visit(files["two"], color_scheme="dark")
    text = page.locator("#accuracy svg.chart text").first
    for ground, ink in (("20, 23, 28", "154, 164, 177"), ("255, 255, 255", "89, 98, 110")):
        assert page.evaluate(GROUND) == f"rgb({ground})"
        assert text.evaluate("t => getComputedStyle(t).fill") == f"rgb({ink})"
        page.get_by_role("button", name="Dark theme").click()
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(GROUND) == "rgb(255, 255, 255)"


def test_values_under_the_pointer_and_by_arrow_keys(visit: Open, files: Files) -> None:
    page = visit(files["two"])
    cell = page.locator("#matrices svg.chart").first.locator(".tip").nth(2)
    cell.scroll_into_view_if_needed()
    cell.hover()
    assert page.inner_text("#tip").startswith("after task 2, tested on task 1 (digits 0): ")
    page.focus("#matrices svg.chart")
    for key, task in (("Home", 1), ("ArrowRight", 2), ("End", 2), ("ArrowUp", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        assert f", tested on task {task} " in page.inner_text("#tip")
        assert page.inner_text("#live") == page.inner_text("#tip")
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")
