"""Figures and the page of an experiment, made from its `results.json` alone.

`read_results` reads and checks the file and needs nothing but numpy. The figures need
matplotlib, the page needs jinja2: `pip install 'conceptors[figures]'`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from conceptors.experiments.results import check_results, read_results

__all__ = [
    "check_results",
    "projected_images",
    "read_results",
    "write_figures",
    "write_page",
]


def write_page(
    results: dict[str, Any], path: Path | str, pictures: Sequence[tuple[str, Path]] = ()
) -> Path:
    """One self-contained HTML page at `path`; it links to `results.json` in the same folder.

    `pictures` are (caption, PNG file) pairs to show as well, such as those of
    `projected_images`. Errors: ValueError for results of another form, ImportError without
    jinja2.
    """
    _need("jinja2", "the page")
    from conceptors.report.page import write

    return write(results, Path(path), pictures)


def write_figures(results: dict[str, Any], folder: Path | str) -> list[Path]:
    """Every figure the results have numbers for, as SVG, PDF and PNG in `folder`.

    Errors: ValueError for results of another form, ImportError without matplotlib.
    """
    _need("matplotlib", "figures")
    from conceptors.report.figures import write

    return write(results, Path(folder))


def projected_images(
    originals: Any, claimed: Any, free: Any, path: Path | str, title: str = ""
) -> list[Path]:
    """Images and what C and F = ¬C leave of them, a row an image (the report's figures 3 and 4).

    `originals`, `claimed` and `free` are arrays or tensors `[k, height, width]` of x, C x and
    F x. Writes `path` with the endings .svg, .pdf and .png, and returns these three.
    Errors: ValueError where the shapes differ, ImportError without matplotlib.
    """
    _need("matplotlib", "figures")
    from conceptors.report.images import draw

    return draw(originals, claimed, free, Path(path), title)


def _need(module: str, what: str) -> None:
    try:
        import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} need{'s' if what.startswith('the') else ''} {module}, which is not "
            f"installed: pip install 'conceptors[figures]'"
        ) from error
