"""The page of a shield in one's own loop."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from conceptors import Shield
from helpers import normal


@pytest.fixture
def shield() -> Shield:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    return Shield(model, keep_tasks=True)


@pytest.mark.filterwarnings("ignore::UserWarning")  # small layers are soon full
def test_the_page_shows_layers_accuracies_spectra_and_similarity(
    shield: Shield, tmp_path: Path
) -> None:
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
