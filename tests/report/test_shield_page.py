"""The page of a shield in one's own loop."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conceptors import Shield
from conceptors.report.shield_page import advice
from conceptors.shield.explain import LayerRow
from helpers import normal


@pytest.fixture
def shield() -> Shield:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    return Shield(model, keep_tasks=True, warn_at_quota=1.0)


def test_the_page_shows_layers_spectra_and_similarity(shield: Shield, tmp_path: Path) -> None:
    optimizer = shield.guard(torch.optim.AdamW(shield.model.parameters()))
    for seed in range(2):
        shield.remember(normal(seed, 40, 2) @ normal(seed + 5, 2, 6))
    for _ in range(4):
        optimizer.zero_grad()
        shield.model(normal(9, 5, 6)).square().sum().backward()
        optimizer.step()
    page = shield.report(tmp_path / "new" / "page.html")
    text = page.read_text(encoding="utf-8")
    assert text.count('<svg class="chart"') == 3  # spectra, and two layers of similarities
    assert "2 tasks are remembered in 2 layers" in text
    assert "gradients and steps projected" in text
    for row in shield.explain():
        assert f"{row.quota:.1%}" in text
        assert row.passing is not None
        assert f"{row.passing:.1%}" in text
    assert "https:" not in text
    assert "src=" not in text.replace("-src", "")
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert not list(page.parent.glob(".*"))


def test_an_empty_shield_says_what_comes_first(shield: Shield, tmp_path: Path) -> None:
    text = shield.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "call shield.remember(data) after each task" in text
    assert "0 tasks are remembered" in text


def row(
    done: str = "gradients and steps projected",
    quota: float = 0.2,
    passing: float | None = None,
    dim: int = 9,
) -> LayerRow:
    return LayerRow("fc", done, 3, dim, quota, passing)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (row(), "no layer is more than half full"),
        (row(quota=0.6), "the fullest layer has a quota of 60%"),
        (row(quota=0.95), "Little room is left in fc"),
        (row(done="no guarded optimizer steps it"), "No guarded optimizer steps fc"),
        (row(done="left alone: shape [3]", dim=0), "fc may change and forget"),
    ],
)
def test_advice(layer: LayerRow, said: str) -> None:
    assert said in " ".join(advice(1, [layer]))


def test_advice_about_a_task_that_hardly_passes() -> None:
    assert "Hardly anything of this task passes in fc." in " ".join(advice(1, [row()], ["fc"]))


@pytest.mark.parametrize(("aperture", "told"), [(1e4, True), ("auto", False)])
def test_the_page_and_the_warning_agree(tmp_path: Path, aperture: Any, told: bool) -> None:
    """And the warning points to the line that made the step, or remembered."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3).double(), normal(0, 30, 4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        shield = Shield(model, aperture).remember(x)
        optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.01))
        for _ in range(130):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert any("hardly anything" in str(one.message) for one in said) is told
    assert {one.filename for one in said} <= {__file__}
    text = shield.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert ("Hardly anything of this task" in text) is told
    assert 'id="tip"' in text
    assert 'id="live"' in text
