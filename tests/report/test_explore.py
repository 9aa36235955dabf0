"""The page to explore, in a real browser: its mathematics, its keys and its labels."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Conceptor, Shield
from conceptors.experiments.scenarios.data import Arrays, DataUnavailableError
from conceptors.report import explore, write_explorer
from helpers import normal

Open = Callable[..., Any]
CLASSES = (0, 3, 5)


def made_up() -> explore.Digits:
    """Three classes in subspaces that overlap: some pixels are never lit, others by one class."""
    images = []
    for seed in range(len(CLASSES)):
        strokes = normal(seed, 6 + seed, 64).abs() * (normal(seed + 9, 64) > 0)
        images.append((normal(seed + 19, 30, len(strokes)).abs() @ strokes).clamp(max=16).round())
    labels = torch.tensor(CLASSES).repeat_interleave(30)
    return explore.Digits("nowhere", torch.cat(images), labels, 16)


@pytest.fixture(scope="module")
def digits() -> explore.Digits:
    return made_up()


@pytest.fixture(scope="module")
def page(digits: explore.Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return explore.write_digits(tmp_path_factory.mktemp("explore") / "page.html", digits)


def chosen(page: Any, *names: str) -> None:
    """Check these boxes alone."""
    for box in page.locator("#choice input").all():
        box.set_checked(box.evaluate("b => b.labels[0].innerText.trim()") in names)


def conceptors(digits: explore.Digits, alpha: float) -> dict[str, Conceptor]:
    found = {str(k): Conceptor.from_states(digits.states(k), alpha) for k in CLASSES}
    a, b, c = found.values()
    return found | {"OR": a | b | c, "AND": a & b & c}


IN_BROWSER = """([moments, alpha, x]) => {
  const all = Object.values(moments).map((m) => Float64Array.from(m));
  const found = Object.fromEntries(Object.keys(moments).map((name, k) => [name, all[k]]));
  found.OR = all.reduce(algebra.or);
  found.AND = all.reduce(algebra.and);
  return Object.fromEntries(Object.entries(found).map(([name, moment]) => {
    const parts = algebra.eigen(moment), s = algebra.singular(parts.values, alpha);
    return [name, { s: [...s], quota: algebra.mean(s), y: [...algebra.project(parts, s, x)] }];
  }));
}"""


@pytest.mark.parametrize("alpha", [0.01, 1.0, 30.0, 1000.0])
def test_the_mathematics_is_that_of_the_algebra(
    alpha: float, visit: Open, page: Path, digits: explore.Digits
) -> None:
    x = digits.states(3)[4]
    rows = {str(k): digits.states(k) for k in CLASSES}
    moments = {name: (r.mT @ r / len(r)).flatten().tolist() for name, r in rows.items()}
    found = visit(page).evaluate(IN_BROWSER, [moments, alpha, x.tolist()])
    known = conceptors(digits, alpha)
    assert set(found) == set(known)
    for name, conceptor in known.items():
        mine = {key: torch.tensor(value, dtype=torch.float64) for key, value in found[name].items()}
        torch.testing.assert_close(mine["s"], conceptor.singular_values, atol=1e-6, rtol=0)
        torch.testing.assert_close(mine["quota"], conceptor.quota, atol=1e-6, rtol=0)
        torch.testing.assert_close(mine["y"], conceptor @ x, atol=1e-6, rtol=0)


def test_eigenvectors(visit: Open, page: Path) -> None:
    root = normal(0, 20, 12)
    matrix = root @ root.mT  # rank 12 of 20
    script = "m => (({values, vectors}) => [[...values], [...vectors]])(algebra.eigen(m))"
    found = visit(page).evaluate(script, matrix.flatten().tolist())
    values, vectors = (torch.tensor(part, dtype=torch.float64) for part in found)
    vectors = vectors.reshape(20, 20)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(matrix).flip(0), atol=1e-12, rtol=0)
    torch.testing.assert_close(vectors @ vectors.mT, torch.eye(20).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(vectors.mT * values @ vectors, matrix, atol=1e-12, rtol=0)


def table(page: Any) -> dict[str, list[float]]:
    """Quotas of C and NOT C by name, as shown."""
    rows = page.eval_on_selector_all(
        "#quota-table tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.innerText.trim()))"
    )
    return {name: [float(cell.removesuffix(" %")) / 100 for cell in cells] for name, *cells in rows}


def test_quotas_follow_the_keys(visit: Open, page: Path, digits: explore.Digits) -> None:
    shown = visit(page)
    chosen(shown, "0", "5")
    shown.focus("#aperture")
    for keys, decade in ((["ArrowRight"], 1.05), (["End"], 3.0), (["Home", "ArrowUp"], -1.95)):
        for key in keys:
            shown.keyboard.press(key)
        alpha = float(shown.input_value("#exact"))
        assert alpha == pytest.approx(10**decade, rel=5e-3)
        a, b = (Conceptor.from_states(digits.states(k), alpha) for k in (0, 5))
        known = {"0": a, "5": b, "0 OR 5": a | b, "0 AND 5": a & b}
        assert table(shown) == {
            name: pytest.approx([float(c.quota), 1 - float(c.quota)], abs=6e-4)
            for name, c in known.items()
        }
        told = shown.get_attribute("#aperture", "aria-valuetext")
        assert told == f"aperture {alpha:g}"
    shown.locator("#live", has_text=f"{told}. 0: ").wait_for(state="attached")


def test_an_exact_aperture(visit: Open, page: Path) -> None:
    shown = visit(page)
    before = table(shown)
    for wrong in ("", "0", "-3", "1e9"):
        shown.fill("#exact", wrong)
        assert table(shown) == before
    shown.fill("#exact", "2.5")
    assert table(shown) != before
    assert float(shown.input_value("#aperture")) == pytest.approx(0.398, abs=0.03)


def test_not_shows_what_is_left(visit: Open, page: Path) -> None:
    shown = visit(page)
    chosen(shown, "3")
    share = float(shown.inner_text("#digit-table tbody tr:nth-child(2) td:nth-child(3)")[:-2])
    shown.focus("#side input")
    shown.keyboard.press("ArrowDown")  # the other radio button
    assert shown.inner_text("#digit-table thead").strip() == "Class\tx\tNOT 3"
    left = float(shown.inner_text("#digit-table tbody tr:nth-child(2) td:nth-child(3)")[:-2])
    assert share + left == pytest.approx(100, abs=0.11)
    spectrum = shown.locator("#spectrum-table tbody td").all_text_contents()
    assert [float(value) for value in spectrum] == sorted(map(float, spectrum), reverse=True)
    assert "NOT 3" in shown.get_attribute("#spectrum-chart svg", "aria-label")


def test_images_are_drawn_and_told(visit: Open, page: Path, digits: explore.Digits) -> None:
    shown = visit(page)
    chosen(shown, "0", "3")
    canvases = shown.locator("#digit-table canvas")
    assert canvases.count() == 3 * (1 + 4)
    pixels = "c => [...c.getContext('2d').getImageData(0, 0, 8, 8).data]"
    found = torch.tensor(canvases.first.evaluate(pixels)[::4]).double()  # red of RGBA
    torch.testing.assert_close(found, digits.pixels[0] * 255 / 16, atol=1, rtol=0)
    assert canvases.first.get_attribute("aria-label") == "digit 0, image 1 of 8"
    label = canvases.nth(3).get_attribute("aria-label")
    assert re.fullmatch(r"digit 0 projected by 0 OR 3: \d+\.\d % of it", label)
    shown.focus("#others")
    shown.keyboard.press("Enter")
    assert canvases.first.get_attribute("aria-label") == "digit 0, image 2 of 8"


def test_nothing_chosen_is_said(visit: Open, page: Path) -> None:
    shown = visit(page)
    chosen(shown)
    assert shown.is_visible("#none")
    assert table(shown) == {}
    chosen(shown, "0")
    assert not shown.is_visible("#none")


def test_every_control_has_a_name_and_is_reached_by_tab(visit: Open, page: Path) -> None:
    shown = visit(page)
    for role, name in (
        ("slider", "Aperture"),
        ("spinbutton", "Aperture, exact value"),
        ("group", "Classes"),
        ("checkbox", "3"),
        ("radio", "what they leave free, NOT C"),
        ("button", "Other images"),
        ("table", "One row per conceptor, at the aperture that is chosen."),
    ):
        assert shown.get_by_role(role, name=name, exact=True).count() == 1
    assert shown.locator("svg[role=img]:not([aria-label])").count() == 0
    assert shown.locator("canvas:not([aria-label])").count() == 0
    reached, named = set(), "({id, type, value}) => id || type + value"
    for _ in range(25):
        shown.keyboard.press("Tab")
        reached.add(shown.evaluate(f"({named})(document.activeElement)"))
    assert {"aperture", "exact", "checkbox0", "checkbox1", "radioclaimed", "others"} <= reached
    shown.focus("#choice input")
    was = table(shown)
    shown.keyboard.press("Space")
    assert table(shown) != was


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_never_wider_than_the_window(width: int, visit: Open, page: Path) -> None:
    shown = visit(page, width)
    chosen(shown, "0", "3", "5")
    shown.locator("details").evaluate("d => d.open = true")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


# --- layers --------------------------------------------------------------------------------


def saved(path: Path, tasks: int = 2, **options: Any) -> Shield:
    grouped = nn.Conv1d(4, 6, 1, groups=2)
    layers = (nn.Linear(6, 12), nn.Unflatten(1, (4, 3)), grouped, nn.Flatten(), nn.Linear(18, 2))
    model = nn.Sequential(*layers)
    shield = Shield(model.double(), warn_at_quota=1.0, **options)
    for seed in range(tasks):
        shield.remember(normal(seed, 40, 2) @ normal(seed + 5, 2, 6))
    shield.save(path)
    return shield


def quotas(shield: Shield, gamma: float) -> dict[str, Any]:
    adapted = {name: c.adapt(gamma) for name, c in shield.conceptors().items()}
    shares = {name: float(c.quota.mean()) for name, c in adapted.items()}
    return {name: pytest.approx([q, 1 - q], abs=6e-4) for name, q in shares.items()}


@pytest.mark.parametrize("options", [{}, {"hard": True}, {"aperture": 4.0}, {"rank": 3}])
def test_layers_of_a_shield(options: dict[str, Any], visit: Open, tmp_path: Path) -> None:
    shield = saved(tmp_path / "file.safetensors", **options)
    shown = visit(write_explorer(tmp_path / "page.html", tmp_path / "file.safetensors"))
    assert "2 tasks are remembered in 3 layers" in shown.inner_text("header")
    assert list(table(shown)) == list(shield.quota())
    assert table(shown) == quotas(shield, 1.0)
    shown.fill("#exact", "3")
    assert table(shown) == quotas(shield, 3.0)
    assert shown.get_by_role("slider", name="Aperture factor", exact=True).count() == 1
    spectrum = shown.locator("#spectrum-table tbody tr").first.locator("td").all_text_contents()
    known = shield.conceptors()["0"].adapt(3.0).singular_values.flatten()
    assert [float(v) for v in spectrum[:3]] == pytest.approx(known[[0, 1, 3]].tolist(), abs=1e-4)


def test_names_from_a_file_do_nothing(visit: Open, tmp_path: Path) -> None:
    name = "</script><script>document.title='owned'</script>"
    conceptor = Conceptor.from_states(normal(0, 1, 20, 5), 3.0)
    shown = visit(explore.write_layers(tmp_path / "page.html", name, 1, {name: conceptor}))
    assert shown.title().startswith("</script>")
    assert next(iter(table(shown))).startswith("</script>")


def test_a_shield_that_claims_nothing(tmp_path: Path) -> None:
    saved(tmp_path / "file.safetensors", tasks=0)
    with pytest.raises(ValueError, match=r"file\.safetensors claims nothing: call"):
        write_explorer(tmp_path / "page.html", tmp_path / "file.safetensors")
    Conceptor.zero(3).save(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other\.safetensors.*is not"):
        write_explorer(tmp_path / "page.html", tmp_path / "other.safetensors")
    assert not (tmp_path / "page.html").exists()


# --- digits to start with --------------------------------------------------------------------


def test_without_scikit_learn_mnist_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.zeros(20, 28, 28, dtype=torch.uint8)
    images[:, 2:5, 5:8] = 90  # one small pixel
    images[0, 0, 0] = 255  # the rim is cut off
    labels = torch.arange(20) % 10
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setattr(explore, "load", lambda name: Arrays(images, labels, images, labels))
    found = explore.load_digits()
    expected: Tensor = torch.zeros(20, 64, dtype=torch.float64)
    expected[:, 1] = 90
    assert torch.equal(found.pixels, expected)
    assert found.source == "MNIST"

    def missing(name: str) -> Arrays:
        raise DataUnavailableError("no MNIST here")

    monkeypatch.setattr(explore, "load", missing)
    with pytest.raises(DataUnavailableError, match="no MNIST here; or pip install"):
        explore.load_digits()


def test_the_page_of_scikit_learns_digits(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    file = write_explorer(tmp_path / "new" / "page.html")
    text = file.read_text("utf-8")
    assert len(text) < 400_000
    assert "https:" not in text.replace("https://www.w3.org", "")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert data["names"] == [str(k) for k in range(10)]
    assert not list(file.parent.glob(".*"))
