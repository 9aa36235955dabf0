"""Images as seen by a conceptor of other data: that of the results' own tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from conceptors.experiments.scenarios import build
from conceptors.report import seen
from experiments.tasks import blobs


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[Tensor]]:
    """What is drawn, without drawing it: images, what is claimed of them, and the rest."""
    found: list[list[Tensor]] = []

    def note(*images: Any) -> list[Path]:
        found.append([images[k].flatten(1) for k in range(3)])
        return [Path("projected.svg"), Path("projected.png")]

    monkeypatch.setattr(seen, "projected_images", note)
    monkeypatch.setattr(seen, "load", blobs)
    return found


@pytest.mark.parametrize(
    ("share", "words"), [(None, "C of shuffled images"), (0.1, "C of images shuffled by 10%")]
)
def test_images_are_shuffled_as_the_second_task_was(
    share: float | None, words: str, tmp_path: Path, drawn: list[list[Tensor]]
) -> None:
    options: dict[str, Any] = {} if share is None else {"shuffled": share}
    results = {
        "scenario": "permuted-mnist",
        "runs": [{"seed": 3}],
        "identity": {"options": options},
    }
    ((caption, file),) = seen.pictures(results, tmp_path)
    assert words in caption
    assert file == Path("projected.png")
    task = build("permuted-mnist", [3], tasks=2, arrays=blobs(), **options).tasks[1]
    held = [
        split.take(torch.arange(split.counts[0])[None])[0][0]
        for split in (task.validation, task.train)
    ]
    conceptor = Conceptor.from_states(torch.cat(held).double(), 4.0)
    shown, claimed, rest = drawn[0]
    torch.testing.assert_close(claimed, conceptor @ shown, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rest, shown - claimed)


def test_results_of_earlier_versions_say_no_settings(
    tmp_path: Path, drawn: list[list[Tensor]]
) -> None:
    results = {"scenario": "permuted-mnist", "runs": [{"seed": 0}]}
    assert "C of shuffled images" in seen.pictures(results, tmp_path)[0][0]


def test_few_shuffled_pixels_leave_more_in_common(
    tmp_path: Path, drawn: list[list[Tensor]]
) -> None:
    for share in (0.1, 1.0):
        identity = {"options": {"shuffled": share}}
        results = {"scenario": "permuted-mnist", "runs": [{"seed": 0}], "identity": identity}
        seen.pictures(results, tmp_path)
    (shown, near, _), (_, far, _) = drawn
    assert (shown - near).norm() < (shown - far).norm()
