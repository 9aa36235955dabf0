"""The numbers behind the figures, and their files: any names can be drawn."""

from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

from conceptors import Conceptor
from conceptors.experiments.scenarios.images import permutation
from conceptors.report import charts, data, sections, seen, theme, write_figures
from experiments.tasks import blobs
from report import sample

SECTIONS = ["accuracy", "forgetting", "matrices", "learning", "quota", "spectra", "similarity"]


def test_any_results_are_drawn_in_all_formats(tmp_path: Path) -> None:
    heads = {".pdf": b"%PDF-", ".png": b"\x89PNG\r\n", ".svg": b"<svg "}
    for name, results in (("many", sample.make(100, 2, ("cab",))), ("hostile", sample.hostile())):
        files = write_figures(results, tmp_path / name)
        assert [f.name for f in files] == [f"{s}.{e}" for s in SECTIONS for e in theme.FORMATS]
        assert all(file.read_bytes().startswith(heads[file.suffix]) for file in files)
        texts = {e.text for e in ET.parse(files[0]).iter() if e.tag.endswith("text")}
        assert {"number of tasks learned", "accuracy on test data (%)"} <= texts
        assert results["runs"][-1]["method"] in {str(text).rstrip("\u200b") for text in texts}


def test_images_are_seen_by_the_conceptor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The paper's figures 3 and 4."""
    draw = Mock(wraps=charts.pictures)
    monkeypatch.setattr(charts, "pictures", draw)
    monkeypatch.setattr(seen, "load", blobs)
    runs = [{"seed": 3, "quota": {"fc": [0.5]}}]
    results = {"scenario": "permuted-mnist", "runs": runs}
    ((caption, file),) = seen.pictures(results, tmp_path)
    assert "conceptor of shuffled images" in caption
    assert file.read_bytes().startswith(b"\x89PNG")
    images = blobs().train_x.flatten(1).double() / 255
    conceptor = Conceptor.from_states(images[:, permutation(3, 1)], 4.0)
    shown, claimed, free = (stack.flatten(1) for stack in draw.call_args[0][0].values())
    torch.testing.assert_close(claimed, conceptor @ shown)
    torch.testing.assert_close(free, shown - claimed)
    for changed in ({"scenario": "rotated-mnist"}, {"runs": [{"seed": 3}]}):  # nothing to show
        assert seen.pictures(results | changed, tmp_path) == []


def test_only_learned_tasks_are_averaged() -> None:
    results = sample.make(2, 2, ("m",), bare=True)
    for run, rows in zip(
        results["runs"], ([[90.0, 0.0], [80.0, 60.0]], [[94.0, 0.0], [80.0, 80.0]])
    ):
        run |= {"accuracy": rows, "final_accuracy": float(np.mean(rows[-1]))}
    means = data.over_seeds(data.accuracy_so_far(results), "after")
    np.testing.assert_allclose(means.value, [92.0, 75.0])
    np.testing.assert_allclose(means.sd, [np.sqrt(8), np.sqrt(50)])
    for run in results["runs"]:  # both tasks learned at once: a single point
        run["accuracy"] = run["accuracy"][-1:]
    assert data.over_seeds(data.accuracy_so_far(results), "after").value.tolist() == [75.0]
    assert not sections.forgetting(results).panels
