"""Files: what is written is read back to the bit; damaged or hostile files are refused."""

import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save, save_file
from torch import Tensor

from conceptors import Conceptor
from conceptors._internal import storage
from helpers import normal, rotation


def padded() -> Conceptor:
    """A batch whose members have ranks 2 and 4."""
    U = rotation(0, 9)
    A = Conceptor.from_spectrum(U[:, :2].expand(2, 9, 2), torch.ones(2, 2).double())
    spans = torch.stack([U[:, :2], U[:, 2:4]])
    return A | Conceptor.from_spectrum(spans, torch.ones(2, 2).double())


EXAMPLES: dict[str, Callable[[], Conceptor]] = {
    "dense": lambda: Conceptor.from_states(normal(0, 20, 5), 2.0),
    "factored": lambda: Conceptor.from_states(normal(0, 3, 7), 2.0),
    "float32": lambda: Conceptor.from_states(normal(0, 20, 5).float(), 270.0),
    "apertures": lambda: Conceptor.from_states(normal(0, 2, 9, 5), torch.tensor([1.0, 2.0])),
    "negated factored": lambda: ~Conceptor.from_states(normal(0, 3, 7), 2.0),
    "identity": lambda: Conceptor.identity(6, dtype=torch.float32),
    "padded negated": lambda: ~padded(),
    "widened": lambda: Conceptor.from_states(normal(0, 3, 40).float(), 2.0).to(torch.float64),
    "very wide": lambda: Conceptor.from_states(normal(0, 3, 7), 1.0).adapt(1e12),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_round_trip(name: str, tmp_path: Path) -> None:
    C = EXAMPLES[name]()
    C.save(tmp_path / "c.safetensors")
    D = Conceptor.load(str(tmp_path / "c.safetensors"))
    assert (D.rank, repr(D)) == (C.rank, repr(C))
    for a, b in zip(C.spectrum, D.spectrum):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
    torch.testing.assert_close(D.matrix(), C.matrix(), rtol=0, atol=1e-6)
    for gamma in (1e-6, math.inf):  # odds are stored, not only rounded singular values
        assert torch.equal(D.adapt(gamma).singular_values, C.adapt(gamma).singular_values)
    Conceptor.identity(4).save(tmp_path / "c.safetensors")  # overwrites
    assert Conceptor.load(tmp_path / "c.safetensors").dim == 4
    assert os.listdir(tmp_path) == ["c.safetensors"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "c.safetensors").stat().st_mode) == 0o666 & ~mask


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "c.safetensors"
    EXAMPLES["factored"]().save(path)
    return path


def test_a_truncated_or_longer_file_is_refused(written: Path) -> None:
    data = written.read_bytes()
    for size in sorted({0, 1, 7, 8, 9, 100, *range(0, len(data), 13), len(data) - 1}):
        written.write_bytes(data[:size])
        with pytest.raises(ValueError, match=rf"c\.safetensors is damaged.*{size} bytes.*restore"):
            Conceptor.load(written)
    written.write_bytes(data + b"more")
    with pytest.raises(ValueError, match="damaged"):
        Conceptor.load(written)


def test_a_flipped_bit_anywhere_is_noticed(written: Path) -> None:
    """In the header, in the names, in the last bit of a number: refused, or without effect."""
    data, C = written.read_bytes(), Conceptor.load(written)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        written.write_bytes(damaged)
        try:
            D = Conceptor.load(written)
        except ValueError as error:
            assert "c.safetensors" in str(error)  # noqa: PT017
        else:
            assert torch.equal(D.spectrum[0], C.spectrum[0])
            assert torch.equal(D.spectrum[1], C.spectrum[1])
            assert D.spectrum[2] == C.spectrum[2]


def test_foreign_files_are_refused_and_never_executed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for data in (b"PK\x03\x04" * 100, b"\x00" * 64, b"\xff" * 64, b"{}"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="damaged or not a safetensors file"):
            Conceptor.load(path)
    torch.save(EXAMPLES["dense"](), path)  # a pickle, whatever it is called
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        Conceptor.load(path)
    save_file({"weight": torch.eye(3), "bias": torch.ones(3)}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"contains no conceptor.*'bias', 'weight'.*`save`"):
        Conceptor.load(path)
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors"):
        Conceptor.load(tmp_path / "nothing.safetensors")


def forge(path: Path, tensors: dict[str, Tensor | None], header: dict[str, str | None]) -> None:
    """Change some of a good file and sign it again."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    old = json.loads(data[8 : 8 + size])["__metadata__"]
    del old["sha256"]
    content = {k: v for k, v in {**load(data), **tensors}.items() if v is not None}
    words = {k: v for k, v in {**old, **header}.items() if v is not None}
    words["sha256"] = storage.digest(content, words)
    path.write_bytes(save(content, words))


GOOD = EXAMPLES["factored"]().spectrum
HALF = torch.full((3,), 0.5, dtype=torch.float64)
FORGERIES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "other format": ({}, {"format": "conceptors.Shield"}, r"'conceptors.Shield'.*C\.save"),
    "newer version": ({}, {"version": "2"}, "version '2'.*upgrade"),
    "no rest": ({}, {"rest": None}, "rest"),
    "rest 0.5": ({}, {"rest": "0.5"}, "rest must be 0 or 1"),
    "no odds": ({"odds": None}, {}, "odds"),
    "NaN vectors": ({"vectors": GOOD[0] * math.nan}, {}, "NaN"),
    "NaN odds": ({"odds": HALF * math.nan}, {}, "odds"),
    "negative odds": ({"odds": -HALF}, {}, "odds"),
    "skew vectors": ({"vectors": GOOD[0] + 0.1}, {}, "not orthonormal"),
    "zero column": ({"vectors": GOOD[0] * torch.tensor([1, 1, 0])}, {}, "zeros"),
    "empty batch": ({"vectors": torch.zeros(0, 7, 3), "odds": torch.zeros(0, 3)}, {}, "shape"),
    "integers": ({"vectors": torch.eye(7, 3, dtype=torch.int64)}, {}, "int64"),
    "complex odds": ({"odds": HALF.to(torch.complex64)}, {}, "float32 or float64"),
    "mixed": ({"odds": HALF.float()}, {}, "float32"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_wrong_content_is_refused(name: str, written: Path) -> None:
    forge(written, {}, {})  # changes nothing: signing is done right
    assert torch.equal(Conceptor.load(written).spectrum[0], GOOD[0])
    tensors, header, message = FORGERIES[name]
    forge(written, tensors, header)
    with pytest.raises(ValueError, match=message) as caught:
        Conceptor.load(written)
    assert str(written) in str(caught.value)


def test_folders_that_are_missing_or_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "c.safetensors"
    Conceptor.zero(3).save(path)
    assert Conceptor.load(path).dim == 3
    (tmp_path / "c").mkdir()
    with pytest.raises(OSError, match="directory"):
        Conceptor.zero(3).save(tmp_path / "c")
    assert sorted(os.listdir(tmp_path)) == ["c", "new"]


@pytest.mark.parametrize("call", ["os.replace", "os.fsync"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_whole(
    call: str, error: BaseException, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(f"conceptors._internal.storage.{call}", fail)
    with pytest.raises(type(error)):
        Conceptor.identity(9).save(written)
    monkeypatch.undo()
    assert written.read_bytes() == before
    assert os.listdir(written.parent) == [written.name]
