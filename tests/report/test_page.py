"""The page as text: its structure, its numbers, and that nothing in the results gets out."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conceptors.report import write_comparison, write_page
from conceptors.report.page import RAW
from conceptors.report.page import render as render_all
from report import sample


def render(results: dict[str, Any]) -> str:
    """The page of one set of results."""
    return render_all({RAW: results})


VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Elements and texts; fails where tags are not closed in order."""

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
        if tag not in VOID:
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


@pytest.fixture(
    params=[
        sample.make(1, 1, bare=True),
        sample.make(2, 3),
        sample.make(10, 2, disjoint=False),
        sample.make(100, 1, ("cab", "sgd"), disjoint=False),
        sample.hostile(),
    ],
    ids=["one", "two", "ten", "hundred", "hostile"],
    scope="module",
)
def page(request: pytest.FixtureRequest) -> Page:
    return Page(render(request.param))


def test_nothing_is_fetched(page: Page) -> None:
    for name, attributes in page.tags:
        for key in ("src", "href", "xlink:href", "srcset", "action", "data"):
            value = attributes.get(key)
            if value is not None and not value.startswith(("#", "data:")):
                assert (name, key, value) == ("a", "href", "results.json")
    for _, text in page.texts:
        assert "http://www.w3.org/" not in text or "SVG = " in text
    (style,) = page.said("style")
    assert "@import" not in style
    assert "url(" not in style


def test_only_our_script_may_run(page: Page) -> None:
    assert page.all("script") == [{}]
    (script,) = page.said("script")
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "'unsafe-inline'" not in policy.split("script-src")[1]
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
    assert script  # its hash is checked on the exact text in the next test


def test_the_policy_names_the_hash_of_the_script() -> None:
    html = render(sample.make(1, 1))
    (script,) = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html


def test_headings_and_names(page: Page) -> None:
    levels = [int(name[1]) for name, _ in page.tags if re.fullmatch("h[1-6]", name)]
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for attributes in page.all("a"):
        href = attributes["href"] or ""
        assert not href.startswith("#") or href[1:] in ids
    charts = [a for a in page.all("svg") if "chart" in (a.get("class") or "")]
    assert charts
    assert all(a.get("aria-label") for a in charts)


def test_names_are_text_everywhere() -> None:
    html = render(sample.hostile())
    page = Page(html)
    assert sample.HOSTILE not in html
    assert not page.all("img")
    assert len(page.all("script")) == 1
    assert f"</title>{sample.HOSTILE} · conceptors" in page.said("title")
    assert any("{{ 7*7 }}" in text for text in page.said("bdi"))
    assert "\x00" not in html
    html.encode("utf-8")  # no lone surrogates


def test_the_summary_says_who_is_best() -> None:
    results = sample.make(2, 3)
    page = Page(render(results))
    cab = results["summary"]["cab"]
    best = [text for text in page.said("strong") if "±" in text]
    assert best == [f"{cab['mean']:.2f} ± {cab['std']:.2f}"]  # joint is higher, but a ceiling
    assert "ceiling" in page.said("span")
    assert "94.91 ± 0.30" in page.said("td")
    assert "not run" in page.said("td")  # imm has a reference value only


def test_one_seed_has_no_spread() -> None:
    page = Page(render(sample.make(2, 1, bare=True)))
    assert not any("±" in text for text in page.said("td") + page.said("title") + page.said("p"))


def test_every_cell_says_its_value() -> None:
    results = sample.make(2, 1, ("sgd",), bare=True)
    results["runs"][0]["accuracy"] = [[98.5, 1.25], [0.5, 97.0]]
    results["runs"][0]["final_accuracy"] = 48.75
    said = Page(render(results)).said("title")
    assert "after task 1, tested on task 1 (digits 0–4): 98.50 %" in said
    assert "after task 1, tested on task 2 (digits 5–9): 1.25 % (not learned yet)" in said
    assert "after task 2, tested on task 1 (digits 0–4): 0.50 %" in said
    assert "sgd, after task 2: 48.75 %" in said


def test_missing_parts_leave_no_empty_sections() -> None:
    ids = {a.get("id") for a in Page(render(sample.make(2, 1, bare=True))).all("section")}
    assert ids == {"summary", "accuracy", "forgetting", "matrices", "configuration"}
    ids = {a.get("id") for a in Page(render(sample.make(2, 1))).all("section")}
    assert ids > {"quota", "spectra", "similarity", "learning", "loss", "deviations"}


def test_settings_are_split_into_shared_and_own() -> None:
    page = Page(render(sample.make(2, 2)))
    cells = page.said("td")
    assert "15" in cells  # strength, of ewc only
    pairs = page.said("dt")
    assert "batch_size" in pairs
    assert "aperture" not in pairs
    assert "seed" not in pairs


def test_many_tasks_stay_light() -> None:
    html = render(sample.make(100, 1, ("cab", "sgd"), disjoint=False))
    assert len(html) < 1_500_000
    assert "20 of 100 tasks are shown." in html


def test_one_accuracy_everywhere() -> None:
    """The headline, the table and the charts give the same number for the same thing."""
    results = sample.make(2, 3, ("sgd",))
    for run in results["runs"]:
        run["final_accuracy"] = 0.6 * run["accuracy"][-1][0] + 0.4 * run["accuracy"][-1][1]
    results["summary"] = {"sgd": sample.summarise(results["runs"])}
    html = render(results)
    entry = results["summary"]["sgd"]
    value = f"{entry['mean']:.2f} ± {entry['std']:.2f}"
    assert value.replace(" ", "\u00a0") in html  # headline
    assert Page(html).said("td").count(value) == 2  # summary and values of the chart
    assert f"sgd, after task 2: {value} %" in Page(html).said("title")


def test_several_folders_on_one_page(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    for k, folder in enumerate(folders):
        folder.mkdir(parents=True)
        results = sample.make(2 + k, 2, ("cab", "sgd"))
        (folder / RAW).write_text(json.dumps(results), "utf-8")
    path = write_comparison(folders, folders[0] / "comparison.html")
    page = Page(path.read_text("utf-8"))
    links = [a["href"] for a in page.all("a") if not (a["href"] or "").startswith("#")]
    assert links == ["results.json", "../../b/run/results.json"]
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {"r1-accuracy", "r2-accuracy", "r1-learning", "r2-configuration"} <= set(ids)
    assert {"run", "run 2"} <= set(page.said("bdi"))
    assert "sgd, run 2, mean" in " ".join(page.said("title"))


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "index.html"
    assert write_page(sample.make(1, 1), path) == path
    before = path.read_bytes()
    bad = sample.make(1, 1)
    del bad["summary"]
    with pytest.raises(ValueError, match="summary is missing"):
        write_page(bad, path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["index.html"]


def test_the_same_results_make_the_same_page() -> None:
    assert render(sample.make(3, 2)) == render(sample.make(3, 2))


def test_seeds_that_failed_are_named() -> None:
    results: dict[str, Any] = sample.make(2, 2)
    failed = {"method": "<cab>", "seed": 7, "reason": "diverged in task 1 of 2", "config": {}}
    assert "&lt;cab&gt; seed 7" in render({**results, "failed": [failed]})
    assert "Failed" not in render(results)


def test_pictures_are_put_inside(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"\x89PNG")
    path = write_page(sample.make(1, 1), tmp_path / "p.html", [("digits <5", file)])
    html = path.read_text("utf-8")
    assert 'src="data:image/png;base64,iVBORw=="' in html
    assert 'alt="digits &lt;5"' in html


@pytest.mark.parametrize("missing", ["jinja2", "altair", "vl_convert"])
def test_without_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from conceptors.report import projected_images, write_figures

    monkeypatch.setitem(sys.modules, missing, None)
    results: dict[str, Any] = sample.make(1, 1)
    message = rf"need {missing}, which is not installed: pip install 'conceptors\[figures\]'"
    with pytest.raises(ImportError, match=message):
        write_page(results, tmp_path / "p.html")
    with pytest.raises(ImportError, match=message):
        write_comparison([], tmp_path / "p.html")
    with pytest.raises(ImportError, match=message):
        write_figures(results, tmp_path)
    with pytest.raises(ImportError, match=message):
        projected_images([], [], [], tmp_path / "p")
    assert not list(tmp_path.iterdir())
