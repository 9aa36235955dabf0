"""The page as text: its numbers, and that nothing in the results gets out."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape
from pathlib import Path

import pytest

from conceptors.experiments.results import summarise
from conceptors.report.page import render
from report import sample


def texts(html: str, tag: str) -> list[str]:
    """What stands at the beginning of elements."""
    return [unescape(text) for text in re.findall(rf"<{tag}\b[^>]*>([^<]*)", html)]


@pytest.fixture(scope="module")
def two() -> str:
    return render(sample.make(2, 3))


def test_the_policy_allows_our_script_alone(two: str) -> None:
    (script,) = re.findall("<script[^>]*>(.*?)</script>", two, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "content=\"default-src 'none';" in two
    assert f"script-src 'sha256-{digest}'" in two
    assert not re.search(r"@import|url\(|https:|<[^>]* on\w+=", two)


def test_the_summary_shows_the_best_published_results_and_failures(two: str) -> None:
    cab = sample.make(2, 3)["summary"]["cab"]
    best = [text for text in texts(two, "strong") if "±" in text]
    assert best == [f"{cab['mean']:.2f} ± {cab['std']:.2f}"]  # joint is higher, but a ceiling
    assert {"94.91 ± 0.30", "3", "15.0"} <= set(texts(two, "td"))  # the last: of ewc alone
    assert {"batch", "rate", "torch", "Preset"} <= set(texts(two, "dt"))
    assert not {"seed", "commit"} & set(texts(two, "dt"))
    assert "Published result" in texts(two, "button")
    assert "Stored numbers" not in texts(two, "button")
    results = sample.make(2, 1)
    results["summary"]["cab"]["stored_numbers"] = 1_234_567
    results["failed"] = [{"method": "<b>", "seed": 7, "reason": "diverged in task 1"}]
    html = render(results)
    assert "Stored numbers" in texts(html, "button")
    assert "1,234,567" in texts(html, "td")
    assert "&lt;b&gt; seed 7 diverged in task 1" in html
    assert not any("±" in text for text in texts(html, "title"))  # of a single seed


def test_the_headline_names_all_methods_in_order(two: str) -> None:
    (lede,) = re.findall('"lede">(.*?)</p>', two, re.DOTALL)
    words = re.sub(r"\s+", " ", unescape(re.sub("<[^>]*>", "", lede)))
    number = r" \d\d\.\d\d ± \d\.\d\d %"
    answer = rf".*plain training \(sgd\) reaches{number} accuracy .*, cab{number} and ewc{number}\."
    assert re.fullmatch(rf"{answer} The ceiling, joint training .*, reaches{number}\.", words)


def test_one_accuracy_everywhere() -> None:
    """The headline, the table and the charts give the same number for the same thing."""
    results = sample.make(2, 3, ("sgd",))
    for run in results["runs"]:
        run["final_accuracy"] = 0.6 * run["accuracy"][-1][0] + 0.4 * run["accuracy"][-1][1]
    results["summary"] = summarise(results["runs"])
    html, entry = render(results), results["summary"]["sgd"]
    value = f"{entry['mean']:.2f} ± {entry['std']:.2f}"
    assert value.replace(" ", "\u00a0") in html  # headline
    assert texts(html, "td").count(value) == 2  # summary and values of the chart
    assert f"sgd, after task 2: {value} %" in texts(html, "title")


def test_parts_that_do_not_apply_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"\x89PNG")
    html = render(sample.make(2, 1), [("digits <5", file)])
    bare = re.findall('<section id="([^"]*)"', render(sample.make(2, 1, bare=True)))
    assert bare == ["summary", "accuracy", "forgetting", "matrices", "configuration"]
    more = {"quota", "spectra", "similarity", "learning", "deviations", "pictures"}
    assert set(re.findall('<section id="([^"]*)"', html)) == more.union(bare)
    assert 'src="data:image/png;base64,iVBORw==" alt="digits &lt;5"' in html
