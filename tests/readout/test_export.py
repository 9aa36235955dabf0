"""A readout as plain layers, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conceptors import PatchFeatures, RandomFeatures, Readout
from readout.common import DIM, assert_close, samples
from helpers import normal

X, Y = samples(0, dtype=torch.float32)


def made(name: str) -> Readout:
    lifts: dict[str, Any] = {
        "plain": 0,
        "relu": 12,
        "fourier": RandomFeatures(DIM, 12, "fourier"),
        "image": RandomFeatures(DIM, 12, "tanh", image=(2, 3), unit=True),
        "patches": PatchFeatures((1, 2, 3), 5, size=2, grid=1),
    }
    return Readout(DIM, lifts[name]).learn(X + 3, Y)


NAMES = ["plain", "relu", "fourier", "image", "patches"]


@pytest.mark.parametrize("name", NAMES)
def test_exports_are_the_same(name: str) -> None:
    readout = made(name)
    exported = readout.export()
    assert_close(exported(X), readout(X), 1e-4)
    assert isinstance(exported, nn.Linear if name == "plain" else nn.Sequential)
    assert not exported.training
    before = exported(X)
    readout.learn(X, (Y + 1) % 4)
    assert torch.equal(exported(X), before)  # it is apart from the readout
    assert not any(p.requires_grad for p in exported.parameters())
    large = sum(p.numel() for p in (*exported.parameters(), *exported.buffers()))
    assert large < 300  # no sums inside


def test_one_number_is_exported_as_a_column() -> None:
    readout = Readout(DIM).learn(X, X.sum(1))
    assert_close(readout.export()(X)[:, 0], readout(X), 1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_exports_can_be_traced(name: str) -> None:
    exported = made(name).export()
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(exported, (X[:5],), dynamic_shapes=({0: batch},))
    assert_close(program.module()(X), exported(X), 1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # torch's own
def test_exports_run_elsewhere(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    exported, path = made(name).export(), tmp_path / "readout.onnx"
    batch = torch.export.Dim("batch", min=2)
    torch.onnx.export(
        exported, (X[:5],), path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )
    session = runtime.InferenceSession(path)
    found = session.run(None, {session.get_inputs()[0].name: X.numpy()})[0]
    assert_close(torch.from_numpy(found), exported(X), 1e-4)


def test_a_readout_in_a_model_can_be_exported() -> None:
    model = nn.Sequential(nn.Linear(4, DIM), nn.ReLU())
    inputs = normal(0, 50, 4).float()
    with torch.no_grad():
        readout = Readout(DIM).learn_from(model, [(inputs, torch.arange(50) % 3)])
        whole = nn.Sequential(model, readout.export())
        assert_close(whole(inputs), readout(model(inputs)), 1e-4)
