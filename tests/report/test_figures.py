"""The numbers behind the figures, and their files: any names can be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest
import torch

from conceptors import Conceptor
from conceptors.experiments.scenarios.images import permutation
from conceptors.report import charts, data, sections, seen, theme, write_figures
from experiments.tasks import blobs
from report import sample

SECTIONS = ["accuracy", "forgetting", "matrices", "learning", "quota", "spectra", "similarity"]


def test_all_figures_in_all_formats(tmp_path: Path) -> None:
    files = write_figures(sample.make(2, 2, ("cab", "sgd")), tmp_path / "figures")
    assert [f.name for f in files] == [f"{n}.{e}" for n in SECTIONS for e in ("svg", "pdf", "png")]
    heads = {".pdf": b"%PDF-", ".png": b"\x89PNG\r\n", ".svg": b"<svg "}
    for file in files:
        assert file.read_bytes().startswith(heads[file.suffix])
    assert sorted(files) == sorted((tmp_path / "figures").iterdir())  # no other file


def test_any_results_can_be_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(theme, "FORMATS", ("svg",))
    for results in (sample.make(100, 2, ("cab",)), sample.hostile(), sample.make(10, 1)):
        files = write_figures(results, tmp_path)
        svgs = {file.stem: ET.parse(file) for file in files}
        assert list(svgs) == SECTIONS
        texts = {k: {e.text for e in s.iter() if e.tag.endswith("text")} for k, s in svgs.items()}
        assert {"number of tasks learned", "accuracy on test data (%)"} <= texts["accuracy"]
        names = {str(text).rstrip("\u200b") for text in texts["accuracy"]}
        assert results["runs"][-1]["method"] in names
    assert {f"task {k}" for k in range(1, 11)} <= texts["forgetting"]
    assert f"task 1: quota {1 / 11:.2f}" in texts["spectra"]


def test_images_are_seen_by_the_conceptor_of_the_second_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


def test_no_images_for_other_scenarios_or_without_conceptors(tmp_path: Path) -> None:
    for scenario, quota in (("rotated-mnist", {"fc": [0.5]}), ("disjoint-mnist", {})):
        results = {"scenario": scenario, "runs": [{"seed": 0, "quota": quota}]}
        assert seen.pictures(results, tmp_path) == []


# --- numbers, on results small enough to compute by hand -----------------------------------


def results(*accuracies: list[list[float]], **parts: list[Any]) -> dict[str, Any]:
    """Runs of one method, a seed for each accuracy matrix."""
    found = sample.make(len(accuracies[0][0]), len(accuracies), ("m",), bare=True)
    for k, (run, rows) in enumerate(zip(found["runs"], accuracies)):
        run |= {"accuracy": rows, "final_accuracy": float(np.mean(rows[-1]))}
        run |= {name: values[k] for name, values in parts.items()}
    return found


def over_seeds(frame: pd.DataFrame, *keys: str) -> list[tuple[Any, ...]]:
    rows = data.over_seeds(frame, *keys).drop(columns="sd").itertuples(index=False, name=None)
    return list(rows)


def test_only_learned_tasks_are_averaged() -> None:
    found = results([[90.0, 0.0], [80.0, 60.0]], [[94.0, 0.0], [80.0, 80.0]])
    means = data.over_seeds(data.accuracy_so_far(found), "after")
    np.testing.assert_allclose(means.value, [92.0, 75.0])
    np.testing.assert_allclose(means.sd, [np.sqrt(8), np.sqrt(50)])
    joint = results([[90.0, 70.0]])  # learned at once: a single point
    assert over_seeds(data.accuracy_so_far(joint), "after") == [(2, 80.0)]
    assert not sections.forgetting(joint).panels


def test_means_over_seeds() -> None:
    rows = [[90.0]]
    first = [{"task": 0, "step": [10, 20], "validation": [50.0, 70.0]}]
    second = [{"task": 0, "step": [10, 20], "validation": [60.0, None]}]
    found = results(
        rows,
        rows,
        history=[first, second],
        quota=[{"fc": [0.1]}, {"fc": [0.3]}],
        spectra=[{"fc": [[1.0, 0.0]]}, {"fc": [[1.0, 0.5]]}],
    )
    assert over_seeds(data.quotas(found), "layer", "after") == [("fc", 1, 0.2)]
    assert over_seeds(data.spectra(found), "after", "index") == [(1, 1, 1.0), (1, 2, 0.25)]
    assert over_seeds(data.learning(found), "task", "step") == [(1, 10, 55.0), (1, 20, 70.0)]
