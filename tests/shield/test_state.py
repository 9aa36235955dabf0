"""Saving a shield and going on: on the same model, another device, a renamed or grown one."""

from __future__ import annotations

import copy
import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conceptors import Shield
from shield.common import samples, train

data = partial(samples, count=30, inputs=8)


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Dropout(0.2), nn.Linear(20, 3)
    ).double()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"hard": True, "aperture": 100.0},
    {"increment_decay": 0.01, "keep_tasks": True},
    {"rank": 4},
    {"aperture": "auto", "keep_tasks": True},
]
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("options", OPTIONS, ids=["soft", "hard", "decay", "sketch", "auto"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("by_file", [False, True], ids=["memory", "file"])
def test_a_checkpoint_taken_mid_task_resumes_bit_equal(
    options: dict[str, Any],
    optimizer: str,
    by_file: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make: Any = OPTIMIZERS[optimizer]
    if "rank" in options:
        monkeypatch.setattr("conceptors.shield.options._DENSE", 5)
    options = {"aperture": 5.0, **options}
    model = network()
    shield = Shield(model, **options)
    first = shield.guard(make(model.parameters()))
    train(model, first, data(1), 4)
    shield.remember(data(1))
    train(model, first, data(2), 4)
    shield.remember(data(2))
    train(model, first, data(3), 3)  # in the middle of the third task
    buffer = io.BytesIO()
    torch.save([model.state_dict(), first.state_dict(), torch.get_rng_state()], buffer)
    state = copy.deepcopy(shield.state_dict())
    if by_file:
        shield.save(tmp_path / "shield.safetensors")
    train(model, first, data(3), 4)

    buffer.seek(0)
    weights, moments, random = torch.load(buffer, weights_only=True)
    twin = network()
    twin.load_state_dict(weights)
    other = Shield(twin, **options)
    second = other.guard(make(twin.parameters()))
    second.load_state_dict(moments)
    if by_file:
        report = other.load(tmp_path / "shield.safetensors")
    else:
        report = other.load_state_dict(state)
    assert report.fits
    assert str(report) == "3 layers loaded"
    torch.set_rng_state(random)
    train(twin, second, data(3), 4)
    for (name, ours), theirs in zip(twin.state_dict().items(), model.state_dict().values()):
        assert torch.equal(ours, theirs), name
    assert other.quota() == shield.quota()
    if options.get("keep_tasks"):
        assert other.forget(0).quota() == shield.forget(0).quota()
        held, taken = shield.state_dict()["stiffness"], other.state_dict()["stiffness"]
        assert all(torch.equal(c, taken[n]) for n, c in held.items())
        assert len(held) == (3 if options["aperture"] == "auto" else 0)


def test_renamed_and_grown_models() -> None:
    state = Shield(network()).remember(data(1)).state_dict()

    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(8, 20), nn.BatchNorm1d(20)
            self.last, self.extra = nn.Linear(20, 3), nn.Linear(20, 2)
            self.double()

    shield = Shield(Renamed())
    with pytest.raises(
        ValueError, match=r"does not fit(.|\n)*first(.|\n)*not in the model: 0, 1, 4"
    ):
        shield.load_state_dict(state)
    assert shield.n_tasks == 0
    names = {"0": "first", "1": "norm", "4": "last"}
    with pytest.raises(ValueError, match=r"in the model but not in the state: extra"):
        shield.load_state_dict(state, rename=names)
    report = shield.load_state_dict(state, rename=names, strict=False)
    assert sorted(report.loaded) == ["first", "last", "norm"]
    assert report.missing == ["extra"]
    assert not report.fits
    assert shield.quota()["extra"] == 0.0
    assert shield.quota()["first"] > 0
    assert shield.n_tasks == 1


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shield.safetensors"
    shield = Shield(network()).remember(data(1))
    shield.save(path)
    whole = path.read_bytes()
    fresh = Shield(network())
    flipped = bytearray(whole)
    flipped[-20] ^= 1
    for content in (whole[:-9], whole[:40], b"", b"not a file at all", bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged"):
            fresh.load(path)
    with pytest.raises(FileNotFoundError):
        fresh.load(tmp_path / "nothing")
    shield.conceptors()["0"].save(path)
    with pytest.raises(ValueError, match=r"not the state of a Shield|not a shield file"):
        fresh.load(path)
    assert fresh.n_tasks == 0
    path.write_bytes(whole)
    assert fresh.load(path).fits


def test_a_failing_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shield.safetensors"
    shield = Shield(network()).remember(data(1))
    shield.save(path)
    whole = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        shield.remember(data(2)).save(path)
    assert path.read_bytes() == whole
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
