"""Made-up images in place of the data sets, and float64 for formulas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from experiments.tasks import blobs


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conceptors.experiments.scenarios.images.load", blobs)


@pytest.fixture
def double() -> Iterator[None]:
    """Everything in float64, where formulas are to hold exactly."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
