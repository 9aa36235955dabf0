"""Which figures the results have numbers for, and under which names they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conceptors.experiments.results import check_results
from conceptors.report import measures, plots
from conceptors.report.printing import save
from conceptors.report.text import slug


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Every figure as SVG, PDF and PNG in `folder`."""
    check_results(results)
    written = save(lambda: plots.accuracy(results), folder / "accuracy")
    written += save(lambda: plots.matrices(results), folder / "matrices")
    taken: set[str] = set()
    for method in measures.methods(results):
        if measures.spectra(results, method):
            name = f"spectra-{slug(method, taken)}"
            written += save(lambda method=method: plots.spectra(results, method), folder / name)  # type: ignore[misc]
    if any(measures.quotas(results, m) for m in measures.methods(results)):
        written += save(lambda: plots.quotas(results), folder / "quota")
    if measures.similarities(results):
        written += save(lambda: plots.similarities(results), folder / "similarity")
    return written
