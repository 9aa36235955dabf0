"""Trainers under torchrun: two processes learn, remember and resume, and agree to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from integrations.common import same
from integrations.launch import HERE, start


def read(folder: Path, name: str) -> Any:
    return torch.load(folder / f"{name}.pt", weights_only=True)


@pytest.mark.parametrize("library", ["transformers", "accelerate", "lightning"])
def test_two_processes_are_protected_agree_and_resume(tmp_path: Path, library: str) -> None:
    pytest.importorskip(library)
    start(HERE / f"two_tasks_{library}.py", tmp_path, processes=2)
    (moved, first), (_, second) = read(tmp_path, "0"), read(tmp_path, "1")
    assert moved < 1e-5
    assert same(first, second)
    assert same(read(tmp_path, "0-resumed"), first)
    assert same(read(tmp_path, "1-resumed"), first)
