"""The page to explore, in a real browser: its mathematics, its keys and its labels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Conceptor, Shield
from conceptors.report import explore, write_explorer
from helpers import normal

Open = Callable[..., Any]
CLASSES = (0, 3, 5)
IN_BROWSER = """([moments, alpha, x]) => {
  const all = moments.map((m) => Float64Array.from(m));
  return [...all, all.reduce(algebra.or), all.reduce(algebra.and)].map((moment) => {
    const parts = algebra.eigen(moment), s = algebra.singular(parts.values, alpha);
    return [[...s], algebra.mean(s), [...algebra.project(parts, s, x)]];
  });
}"""


@pytest.fixture(scope="module")
def images() -> list[Tensor]:
    """Three classes; some pixels are never lit, others by one class."""
    stacks = [8 * normal(k, 30, 64).abs() * (normal(k + 9, 64) > 0) for k in range(len(CLASSES))]
    return [stack.clamp(max=16).round() for stack in stacks]


@pytest.fixture
def page(images: list[Tensor], tmp_path: Path, visit: Open) -> Any:
    labels = torch.tensor(CLASSES).repeat_interleave(30)
    file = tmp_path / "page.html"
    file.write_text(explore.digits_page(torch.cat(images), labels), "utf-8")
    return visit(file, 390)


def choose(page: Any, *names: str) -> None:
    """Check these boxes alone."""
    for box in page.locator("#choice input").all():
        box.set_checked(box.evaluate("b => b.labels[0].innerText.trim()") in names)


def table(page: Any) -> dict[str, list[float]]:
    """Quotas of C and NOT C by name, as shown."""
    rows = page.eval_on_selector_all(
        "#quota-table tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.innerText.trim()))"
    )
    return {name: [float(cell.removesuffix(" %")) / 100 for cell in cells] for name, *cells in rows}


def shares(conceptors: dict[str, Conceptor]) -> Any:
    quotas = {name: float(c.quota.mean()) for name, c in conceptors.items()}
    return {name: pytest.approx([q, 1 - q], abs=6e-4) for name, q in quotas.items()}


@pytest.mark.parametrize("alpha", [0.01, 1.0, 1000.0])
def test_its_mathematics_is_the_algebra(alpha: float, page: Any, images: list[Tensor]) -> None:
    rows, x = [stack / 16 for stack in images], images[1][4] / 16
    moments = [(r.mT @ r / len(r)).flatten().tolist() for r in rows]
    a, b, c = (Conceptor.from_states(r, alpha) for r in rows)
    computed = page.evaluate(IN_BROWSER, [moments, alpha, x.tolist()])
    for parts, known in zip(computed, (a, b, c, a | b | c, a & b & c), strict=True):
        for part, value in zip(parts, (known.singular_values, known.quota, known @ x), strict=True):
            torch.testing.assert_close(torch.tensor(part).double(), value, atol=1e-6, rtol=0)


def test_everything_follows_the_aperture(page: Any, images: list[Tensor]) -> None:
    choose(page, "0", "5")
    page.focus("#aperture")
    for keys, decade in ((["ArrowRight"], 1.05), (["Home", "ArrowUp"], -1.95)):
        for key in keys:
            page.keyboard.press(key)
        alpha = float(page.input_value("#exact"))
        assert alpha == pytest.approx(10**decade, rel=5e-3)
        a, b = (Conceptor.from_states(images[k] / 16, alpha) for k in (0, 2))
        known = {"0": a, "5": b, "0 OR 5": a | b, "0 AND 5": a & b}
        assert table(page) == shares(known)
        assert page.get_attribute("#aperture", "aria-valuetext") == f"aperture {alpha:g}"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    choose(page)
    assert page.is_visible("#none")


@pytest.mark.parametrize("options", [{}, {"hard": True}, {"aperture": 4.0}])
@pytest.mark.filterwarnings("ignore::UserWarning")  # small layers are soon full
def test_layers_of_a_shield(options: dict[str, Any], visit: Open, tmp_path: Path) -> None:
    torch.manual_seed(0)
    grouped = nn.Conv1d(4, 6, 1, groups=2)
    layers = (nn.Linear(6, 12), nn.Unflatten(1, (4, 3)), grouped, nn.Flatten(), nn.Linear(18, 2))
    shield = Shield(nn.Sequential(*layers).double(), **options)
    file = tmp_path / "<script>document.title='owned'<|script>.safetensors"
    shield.save(file)
    with pytest.raises(ValueError, match=r"safetensors protects nothing: call"):
        write_explorer(tmp_path / "page.html", file)
    assert not (tmp_path / "page.html").exists()
    for seed in range(2):
        shield.remember(normal(seed, 40, 2) @ normal(seed + 5, 2, 6))
    shield.save(file)
    page = visit(write_explorer(tmp_path / "page.html", file))
    assert page.title().startswith("<script>")
    assert "2 tasks are remembered in 3 layers" in page.inner_text("header")
    for factor in (1.0, 3.0):
        page.fill("#exact", str(factor))
        known = {name: c.adapt(factor) for name, c in shield.conceptors().items()}
        assert table(page) == shares(known)
