"""Hostile downloads: damaged, endless or exploding; links; full disks; a pip.py in the way."""

import errno
import gzip
import os
import sys
from pathlib import Path

import pytest

from conceptors.experiments.scenarios.data import files as module
from conceptors.experiments.scenarios.data.files import CATALOGUE, DataUnavailableError, fetch
from experiments.test_data import ARCHIVE, CONTENT, PACKED, folder, mirror, offer

__all__ = ["folder", "mirror"]
ALPHA = PACKED["alpha.bin.gz"]
WRONG = [
    b"other",
    gzip.compress(b"other", mtime=0),
    ALPHA[:-9],
    ALPHA[:10] + b"\xff" * 60,
    b"\x1f\x8b\x08",
]


@pytest.mark.parametrize("content", WRONG)
def test_wrong_downloads_are_refused(
    content: bytes, mirror: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for archive in (False, True):
        offer(monkeypatch, *CATALOGUE["toy"]["beta.bin"].mirrors, archive=archive)
        mirror["all.tar.gz" if archive else "alpha.bin.gz"] = content
        with pytest.raises(DataUnavailableError, match=r"does not match the known hash: expected"):
            fetch("toy")
        assert not any((tmp_path / "cache" / "toy").iterdir())


@pytest.mark.parametrize("content", [*WRONG, gzip.compress(bytes(8 << 20), mtime=0)])
def test_wrong_files_in_the_folder_are_named(
    content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST", 1 << 20)  # a packed file may unpack to any size
    (folder / "alpha.bin.gz").write_bytes(content)
    with pytest.raises(DataUnavailableError, match=r"alpha\.bin\.gz is not .*Replace the file"):
        fetch("toy")
    offer(monkeypatch, archive=True)
    (folder / "alpha.bin.gz").unlink()
    (folder / "all.tar.gz").write_bytes(ARCHIVE.getvalue()[:-1])  # refused unopened
    with pytest.raises(DataUnavailableError, match=r"SHA-256 is \w+… instead of \w+…"):
        fetch("toy")


def test_an_endless_answer_is_cut(
    mirror: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST", 1 << 20)
    mirror["alpha.bin.gz"] = bytes(3 << 20)
    with pytest.raises(DataUnavailableError, match="sends more than 1048576 bytes"):
        fetch("toy")
    assert not any((tmp_path / "cache" / "toy").iterdir())


def test_nothing_is_written_through_a_link(mirror: dict[str, bytes], tmp_path: Path) -> None:
    victim, cache = tmp_path / "victim", tmp_path / "cache" / "toy"
    victim.write_text("mine")
    cache.mkdir(parents=True)
    (cache / "alpha.bin.gz").symlink_to(victim)
    assert fetch("toy") == CONTENT
    assert victim.read_text() == "mine"
    for path in cache.iterdir():
        path.unlink()
    cache.rmdir()
    cache.symlink_to(tmp_path / "data")
    with pytest.raises(DataUnavailableError, match="is a link"):
        fetch("toy")
    assert os.listdir(tmp_path / "data") == ["toy"]


@pytest.mark.parametrize("problem", ["No space left on device", "Not a directory"])
def test_a_cache_that_cannot_be_written_is_named(
    problem: str, mirror: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    if problem == "Not a directory":
        (tmp_path / "cache").write_text("a file")
    else:
        monkeypatch.setattr(module._Limited, "write", full)
    with pytest.raises(DataUnavailableError, match=rf"(?s){problem}.*set CONCEPTORS_CACHE"):
        fetch("toy")


def test_a_file_called_pip_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "pip:no-such-package-of-conceptors==1")
    for name in ("pip.py", "runpy.py", "zipfile.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # no network is needed to see that pip ran
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", *sys.path]))
    with pytest.raises(DataUnavailableError, match="No matching distribution"):
        fetch("toy")
    assert not (tmp_path / "ran").exists()
