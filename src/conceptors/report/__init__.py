"""Charts and the page of experiments, made from their `results.json` alone.

`read_results` reads and checks the file and needs nothing but numpy. Charts and the page need
altair, vl-convert and jinja2: `pip install 'conceptors[figures]'`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conceptors.experiments.results import check_results, read_results

if TYPE_CHECKING:
    from conceptors.shield import Shield

__all__ = [
    "check_results",
    "need_charts",
    "projected_images",
    "read_results",
    "write_comparison",
    "write_explorer",
    "write_figures",
    "write_page",
    "write_shield_page",
]


def write_page(
    results: dict[str, Any], path: Path | str, pictures: Sequence[tuple[str, Path]] = ()
) -> Path:
    """One self-contained HTML page at `path`; it links to `results.json` in the same folder.

    `pictures` are (caption, PNG file) pairs to show as well, such as those of
    `projected_images`. Errors: ValueError for results of another form, ImportError without
    the extra `figures`.
    """
    need_charts()
    from conceptors.report.page import RAW, write

    return write({RAW: results}, Path(path), pictures)


def write_comparison(folders: Sequence[Path | str], path: Path | str) -> Path:
    """One page at `path` with the results of several folders side by side.

    Errors: ValueError for results of another form, OSError where there are none, ImportError
    without the extra `figures`.
    """
    need_charts()
    from conceptors.report.page import RAW, write

    found, names = {}, {}
    for folder in folders:
        file = Path(folder) / RAW
        link = os.path.relpath(file.resolve(), Path(path).resolve().parent)
        found[Path(link).as_posix()] = read_results(file)
        names[Path(link).as_posix()] = file.resolve().parent.name
    return write(found, Path(path), names=list(names.values()))


def write_shield_page(shield: Shield, path: Path | str, stuck: Sequence[str] = ()) -> Path:
    """One self-contained page about a shield; see `Shield.report`."""
    need_charts()
    import torch

    from conceptors.algebra.conceptor import similarity
    from conceptors.report.shield_page import write

    kept = shield.tasks()
    alike = {
        name: torch.tensor(
            [[float(similarity(a[name], b[name]).mean()) for b in kept] for a in kept]
        )
        for name in (kept[-1] if len(kept) > 1 else {})
        if all(name in task and task[name].dim > 2 for task in kept)
    }
    spectra = {
        name: values.double().reshape(-1, values.shape[-1]).mean(0).cpu().numpy()
        for name, values in shield.spectra().items()
        if values.shape[-1] > 2
    }
    title = type(shield.model).__name__
    found = {name: matrix.double().numpy() for name, matrix in alike.items()}
    return write(Path(path), title, shield.n_tasks, shield.explain(), spectra, found, stuck)


def write_explorer(path: Path | str, shield: Path | str | None = None) -> Path:
    """One self-contained page on which to move the aperture and see what a conceptor makes of it.

    Of classes of small digits with their NOT, OR and AND; or, where `shield` is a file that
    `Shield.save` wrote, of its layers. Errors: ValueError for a file that is none,
    DataUnavailableError where no digits can be had, ImportError without the extra `figures`.
    """
    need_charts()
    from conceptors.report.explore import load_digits, write_digits, write_layers

    if shield is None:
        return write_digits(Path(path), load_digits())
    from conceptors.shield.state import read_claims

    tasks, layers = read_claims(shield)
    return write_layers(Path(path), Path(shield).name, tasks, layers)


def write_figures(results: dict[str, Any], folder: Path | str) -> list[Path]:
    """Every chart the results have numbers for, as SVG, PDF and PNG in `folder`.

    Errors: ValueError for results of another form, ImportError without the extra `figures`.
    """
    need_charts()
    from conceptors.report.sections import write

    return write(results, Path(folder))


def projected_images(
    originals: Any, claimed: Any, free: Any, path: Path | str, title: str = ""
) -> list[Path]:
    """Images and what C and F = ¬C leave of them, one row per image (the paper's figures 3 and 4).

    `originals`, `claimed` and `free` are arrays or tensors `[k, height, width]` of x, C x and
    F x. Writes `path` with the endings .svg, .pdf and .png, and returns these three.
    Errors: ValueError where the shapes differ, ImportError without the extra `figures`.
    """
    need_charts()
    from conceptors.report.images import draw

    return draw(originals, claimed, free, Path(path), title)


def need_charts() -> None:
    """ImportError with what to install, unless all that charts and the page need is there."""
    for module in ("altair", "vl_convert", "jinja2"):
        try:
            import_module(module)
        except ImportError as error:
            raise ImportError(
                f"charts and the page need {module}, which is not installed: "
                f"pip install 'conceptors[figures]'"
            ) from error
