"""Trainer under torchrun: two processes learn, remember and resume as one would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from integrations.common import same
from integrations.launch import HERE, start

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

PROGRAM = HERE / "two_tasks_trainer.py"


def read(folder: Path, name: str) -> Any:
    return torch.load(folder / f"{name}.pt", weights_only=True)


def test_two_processes_are_protected_agree_and_resume(tmp_path: Path) -> None:
    start(PROGRAM, tmp_path, 4, processes=2)
    (moved, first), (_, second) = read(tmp_path, "0"), read(tmp_path, "1")
    assert moved < 1e-5
    assert same(first, second)
    for rank in ("0", "1"):
        assert same(read(tmp_path, f"{rank}-resumed"), first)
    assert (tmp_path / "second" / "shield.safetensors").is_file()
