"""Charts and pages about experiments and shields; experiments need only their `results.json`.

`read_results` reads and checks that file. All other functions need altair, vl-convert, pandas and
jinja2: `pip install 'conceptors[figures]'`.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conceptors import Shield
from conceptors.experiments.results import read_results

__all__ = [
    "need_charts",
    "read_results",
    "write_explorer",
    "write_figures",
    "write_page",
    "write_shield_page",
]


def write_page(results: dict[str, Any], path: Path | str) -> Path:
    """Write one self-contained HTML page, which links to `results.json` in the same folder.

    `results` come from `read_results`.
    """
    need_charts()
    from conceptors.report import page, theme

    return theme.write_file(Path(path), page.render(results).encode())


def write_figures(results: dict[str, Any], folder: Path | str) -> list[Path]:
    """Write every chart for which the results have numbers, as SVG, PDF and PNG."""
    need_charts()
    from conceptors.report import sections

    return sections.write(results, Path(folder))


def write_shield_page(
    shield: Shield,
    path: Path | str,
    stuck: Sequence[str] = (),
    title: str | None = None,
    accuracy: Sequence[Sequence[float]] = (),
) -> Path:
    """Write one self-contained page about a shield; see `Shield.report`."""
    need_charts()
    from conceptors.report import shield_page, theme

    title = title or type(shield.model).__name__
    page = shield_page.render(shield, title, accuracy, stuck)
    return theme.write_file(Path(path), page.encode("utf-8", "replace"))


def write_explorer(path: Path | str, shield: Path | str | None = None) -> Path:
    """Write one self-contained page with a slider for the aperture.

    The page shows conceptors of small digits with their NOT, OR and AND. If `shield` names a file
    of `Shield.save`, it shows the conceptors of that shield's layers.

    Raises:
        ValueError: `shield` is not a file of a shield, or it protects nothing.
        ImportError: scikit-learn, which contains the digits, is not installed.
    """
    need_charts()
    from conceptors.report import explore, theme

    page = explore.digits() if shield is None else explore.layers(Path(shield))
    return theme.write_file(Path(path), page.encode("utf-8", "replace"))


def need_charts() -> None:
    """Raise an ImportError with the install command unless the extra `figures` is installed."""
    for module in ("altair", "vl_convert", "pandas", "jinja2"):
        if find_spec(module) is None:
            raise ImportError(
                f"charts and the page need {module}, which is not installed: "
                f"pip install 'conceptors[figures]'"
            )
