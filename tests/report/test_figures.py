"""The numbers behind the figures, and their files: any names can be drawn."""

from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np

from conceptors.report import data, sections, theme, write_figures
from report import sample

SECTIONS = ["accuracy", "forgetting", "matrices", "quota", "spectra", "similarity"]


def test_any_results_are_drawn_in_all_formats(tmp_path: Path) -> None:
    heads = {".pdf": b"%PDF-", ".png": b"\x89PNG\r\n", ".svg": b"<svg "}
    for name, results in (("many", sample.make(100, 2, ("cab",))), ("hostile", sample.hostile())):
        files = write_figures(results, tmp_path / name)
        assert [f.name for f in files] == [f"{s}.{e}" for s in SECTIONS for e in theme.FORMATS]
        assert all(file.read_bytes().startswith(heads[file.suffix]) for file in files)
        texts = {e.text for e in ET.parse(files[0]).iter() if e.tag.endswith("text")}
        assert {"number of tasks learned", "accuracy on test data (%)"} <= texts
        assert results["runs"][-1]["method"] in {str(text).rstrip("\u200b") for text in texts}


def test_only_learned_tasks_are_averaged() -> None:
    results = sample.make(2, 2, ("m",), bare=True)
    for run, rows in zip(
        results["runs"], ([[90.0, 0.0], [80.0, 60.0]], [[94.0, 0.0], [80.0, 80.0]])
    ):
        run |= {"accuracy": rows, "final_accuracy": float(np.mean(rows[-1]))}
    means = data.over_seeds(data.accuracy_so_far(results), "after")
    np.testing.assert_allclose(means.value, [92.0, 75.0])
    np.testing.assert_allclose(means.sd, [np.sqrt(8), np.sqrt(50)])
    assert not sections.forgetting(sample.make(1)).panels
