"""The page as text: its structure, its numbers, and that nothing in the results gets out."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conceptors.report import write_explorer, write_figures, write_page
from conceptors.report.page import render
from report import sample


class Page(HTMLParser):
    """Elements and texts; fails if tags are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def said(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]

    def sections(self) -> set[str | None]:
        return {attributes.get("id") for attributes in self.all("section")}


@pytest.fixture(
    params=[
        sample.make(1, 1, bare=True),
        sample.make(2, 3),
        sample.make(100, 1, ("cab", "sgd")),
        sample.hostile(),
    ],
    ids=["one", "two", "hundred", "hostile"],
    scope="module",
)
def html(request: pytest.FixtureRequest) -> str:
    return render(request.param)


def test_nothing_is_fetched_and_only_our_script_may_run(html: str) -> None:
    page = Page(html)
    for name, attributes in page.tags:
        for key in ("src", "href", "xlink:href", "srcset", "action", "data"):
            value = attributes.get(key)
            if value is not None and not value.startswith(("#", "data:")):
                assert (name, key, value) == ("a", "href", "results.json")
        assert not [key for key in attributes if key.startswith("on")]
    (style,) = page.said("style")
    assert "@import" not in style
    assert "url(" not in style
    assert page.all("script") == [{}]
    (script,) = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [m["content"] or "" for m in page.all("meta") if "http-equiv" in m]
    assert policy.startswith("default-src 'none';")
    assert f"script-src 'sha256-{digest}'" in policy


def test_headings_and_names(html: str) -> None:
    page = Page(html)
    levels = [int(name[1]) for name, _ in page.tags if re.fullmatch("h[1-6]", name)]
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] or "" for attributes in page.all("a")]
    assert {href[1:] for href in links if href.startswith("#")} <= set(ids)
    figures = [a for a in page.all("svg") if "chart" in (a.get("class") or "")]
    assert figures
    assert all(a.get("aria-label") for a in figures)


def test_names_are_text_everywhere() -> None:
    html = render(sample.hostile())
    page = Page(html)
    assert sample.HOSTILE not in html
    assert not page.all("img")
    assert f"</title>{sample.HOSTILE} · conceptors" in page.said("title")
    assert any("{{ 7*7 }}" in text for text in page.said("bdi"))
    assert "\x00" not in html
    html.encode("utf-8")  # no lone surrogates


def test_the_summary_marks_the_best_and_shows_published_results() -> None:
    results = sample.make(2, 3)
    page = Page(render(results))
    cab = results["summary"]["cab"]
    best = [text for text in page.said("strong") if "±" in text]
    assert best == [f"{cab['mean']:.2f} ± {cab['std']:.2f}"]  # joint is higher, but a ceiling
    assert "ceiling" in page.said("span")
    assert {"94.91 ± 0.30", "3"} <= set(page.said("td"))
    assert "Published result" in page.said("button")
    assert "Stored numbers" not in page.said("button")
    assert "imm" not in page.said("bdi")  # a published result, but no run
    results["summary"]["cab"]["stored_numbers"] = 1_234_567
    page = Page(render(results))
    assert "Stored numbers" in page.said("button")
    assert "1,234,567" in page.said("td")


def test_the_headline_names_all_methods_in_order() -> None:
    html = render(sample.make(2, 3))
    lede = re.sub(r"\s+", " ", re.sub("<[^>]*>", "", re.findall('"lede">(.*?)</p>', html, re.S)[0]))
    number = r"\S*nbsp;\d\d\.\d\d\S±\S\d\.\d\d\S%"
    assert re.fullmatch(
        rf"After 2 tasks, .* is cab{number}, ewc{number} and sgd{number}\. .*joint{number}\.", lede
    )


def test_one_accuracy_everywhere() -> None:
    """The headline, the table and the charts give the same number for the same thing."""
    results = sample.make(2, 3, ("sgd",))
    for run in results["runs"]:
        run["final_accuracy"] = 0.6 * run["accuracy"][-1][0] + 0.4 * run["accuracy"][-1][1]
    results["summary"] = sample.summarise(results["runs"])
    html, entry = render(results), results["summary"]["sgd"]
    value = f"{entry['mean']:.2f} ± {entry['std']:.2f}"
    assert value.replace(" ", "\u00a0") in html  # headline
    assert Page(html).said("td").count(value) == 2  # summary and values of the chart
    assert f"sgd, after task 2: {value} %" in Page(html).said("title")


def test_every_cell_says_its_value_and_one_seed_has_no_spread() -> None:
    results = sample.make(2, 1, ("sgd",))
    results["runs"][0] |= {"accuracy": [[98.5, 1.25], [0.5, 97.0]], "final_accuracy": 48.75}
    page = Page(render(results))
    assert {
        "after task 1, tested on task 1 (digits 0): 98.50 %",
        "after task 1, tested on task 2 (digits 1): 1.25 % (not learned yet)",
        "after task 2, tested on task 1 (digits 0): 0.50 %",
        "sgd, after task 2: 48.75 %",
    } <= set(page.said("title"))
    assert not any("±" in text for text in page.said("td") + page.said("title"))


def test_parts_that_do_not_apply_are_left_out(tmp_path: Path) -> None:
    found = Page(render(sample.make(2, 1, bare=True))).sections()
    assert found == {"summary", "accuracy", "forgetting", "matrices", "configuration"}
    file = tmp_path / "a.png"
    file.write_bytes(b"\x89PNG")
    html = render(sample.make(2, 1), [("digits <5", file)])
    found = Page(html).sections()
    assert found > {"quota", "spectra", "similarity", "learning", "deviations", "pictures"}
    assert 'src="data:image/png;base64,iVBORw=="' in html
    assert 'alt="digits &lt;5"' in html


def test_settings_are_split_into_shared_and_differing() -> None:
    page = Page(render(sample.make(2, 2)))
    assert "15.0" in page.said("td")  # strength, of ewc only
    assert {"batch", "rate", "torch", "Preset"} <= set(page.said("dt"))
    assert not {"strength", "seed", "commit"} & set(page.said("dt"))


def test_learning_curves_share_their_axis() -> None:
    results = sample.make(1, 1, ("a", "b"))
    results["runs"][0]["history"][0]["validation"] = [12.0, 13.0]
    (section,) = re.findall('<section id="learning".*?</section>', render(results), re.S)
    assert section.count(">20</text>") == section.count(">80</text>") == 2


def test_seeds_that_failed_are_named() -> None:
    results: dict[str, Any] = sample.make(2, 2)
    failed = {"method": "<cab>", "seed": 7, "reason": "diverged in task 1 of 2", "config": {}}
    assert "&lt;cab&gt; seed 7 diverged in task 1" in render({**results, "failed": [failed]})
    assert "Seeds that failed" not in render(results)


def test_many_tasks_stay_light_and_equal_results_give_equal_pages(tmp_path: Path) -> None:
    results = sample.make(100, 1, ("cab", "sgd"))
    path = write_page(results, tmp_path / "new" / "index.html")
    html = path.read_text("utf-8")
    assert len(html) < 1_500_000
    assert "20 of 100 tasks are shown." in html
    assert html == render(results)
    assert [file.name for file in path.parent.iterdir()] == ["index.html"]


@pytest.mark.parametrize("missing", ["jinja2", "altair", "vl_convert", "pandas"])
def test_without_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    message = rf"need {missing}, which is not installed: pip install 'conceptors\[figures\]'"
    with pytest.raises(ImportError, match=message):
        write_page(sample.make(1, 1), tmp_path / "p.html")
    with pytest.raises(ImportError, match=message):
        write_figures(sample.make(1, 1), tmp_path)
    with pytest.raises(ImportError, match=message):
        write_explorer(tmp_path / "p.html")
    assert not list(tmp_path.iterdir())
