"""The command line runs on small made-up data, and leaves the user's folders alone."""

from pathlib import Path

import pytest

from experiments.tasks import blobs


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("conceptors.experiments.scenarios.images.load", blobs)
    monkeypatch.setenv("CONCEPTORS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONCEPTORS_DATA", raising=False)
