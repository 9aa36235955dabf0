"""The page as text: its numbers, and that nothing in the results gets out."""

import base64
import hashlib
import re
from html import unescape
from pathlib import Path

import pytest
import torch
from torch import nn

from conceptors import Shield
from conceptors.experiments.results import summarise
from conceptors.report.page import render
from helpers import normal
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


def test_names_are_text_everywhere() -> None:
    html = render(sample.hostile())
    assert sample.HOSTILE not in html
    assert "<img" not in html
    assert html.count("<script") == 1
    assert f"</title>{sample.HOSTILE} · conceptors" in texts(html, "title")
    assert any("{{ 7*7 }}" in text for text in texts(html, "bdi"))
    assert "\x00" not in html


def test_the_summary_shows_the_best_published_results_and_failures(two: str) -> None:
    cab = sample.make(2, 3)["summary"]["cab"]
    best = [text for text in texts(two, "strong") if "±" in text]
    assert best == [f"{cab['mean']:.2f} ± {cab['std']:.2f}"]  # joint is higher, but a ceiling
    assert {"94.91 ± 0.30", "3", "15.0"} <= set(texts(two, "td"))  # the last: of ewc alone
    assert {"batch", "rate", "torch", "Preset"} <= set(texts(two, "dt"))
    assert not {"seed", "commit"} & set(texts(two, "dt"))
    assert "Published result" in texts(two, "button")
    results = sample.make(2, 1)
    results["failed"] = [{"method": "<b>", "seed": 7, "reason": "diverged in task 1"}]
    html = render(results)
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


def test_parts_that_do_not_apply_are_left_out() -> None:
    html = render(sample.make(2, 1))
    bare = re.findall('<section id="([^"]*)"', render(sample.make(2, 1, bare=True)))
    assert bare == ["summary", "accuracy", "forgetting", "matrices", "configuration"]
    more = {"quota", "spectra", "similarity", "deviations"}
    assert set(re.findall('<section id="([^"]*)"', html)) == more.union(bare)


@pytest.fixture
def shield() -> Shield:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    return Shield(model, keep_tasks=True)


@pytest.mark.filterwarnings("ignore::UserWarning")  # small layers are soon full
def test_the_page_of_a_shield_shows_all_parts(shield: Shield, tmp_path: Path) -> None:
    optimizer = shield.guard(torch.optim.AdamW(shield.model.parameters()))
    for seed in range(2):
        shield.remember(normal(seed, 40, 2) @ normal(seed + 5, 2, 6))
    for _ in range(4):
        optimizer.zero_grad()
        shield.model(normal(9, 5, 6)).square().sum().backward()
        optimizer.step()
    accuracy = [[97.0], [96.5, 88.0]]
    page = shield.report(tmp_path / "new" / "page.html", title="My <model>", accuracy=accuracy)
    text = page.read_text(encoding="utf-8")
    assert "<h1><bdi>My &lt;model&gt;</bdi></h1>" in text
    assert "after task 2, tested on task 1: 96.50 %" in text
    assert text.count('<svg class="chart"') == 4  # accuracy, spectra, similarities of two layers
    assert "2 tasks are remembered in 2 layers" in text
    for row in shield.explain():
        assert f"{row.quota:.1%}" in text
        assert f"{row.passing:.1%}" in text
    columns = re.findall(r'<th scope="col"[^>]*>([A-Z].*?)</th>', text.split("</thead>")[0])
    assert columns == re.findall("<b>(.*?)</b>", text)  # all are explained
    assert "https:" not in text


def test_an_empty_shield_says_what_comes_first(shield: Shield, tmp_path: Path) -> None:
    text = shield.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "call <code>shield.remember(data)</code> after each task" in text


def test_accuracies_are_percentages(shield: Shield, tmp_path: Path) -> None:
    for wrong in (101.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="rows of percentages"):
            shield.report(tmp_path / "page.html", accuracy=[[50.0, wrong]])
    assert not list(tmp_path.iterdir())
