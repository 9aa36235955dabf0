"""Data sets from a folder, the cache or a mirror; all from small files made here."""

import gzip
import hashlib
import http.server
import io
import lzma
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conceptors.experiments.scenarios.data.files import (
    CATALOGUE,
    DataFile,
    DataUnavailableError,
    fetch,
    where,
)
from conceptors.experiments.scenarios.data.read import load

CONTENT = {"alpha.bin": b"alpha" * 3000, "beta.bin": bytes(range(256)) * 40}
PACKED = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in CONTENT.items()}
ARCHIVE = io.BytesIO()
with tarfile.open(fileobj=ARCHIVE, mode="w:gz") as _archive:
    for _name, _content in CONTENT.items():
        _member = tarfile.TarInfo(f"inner/{_name}")
        _member.size = len(_content)
        _archive.addfile(_member, io.BytesIO(_content))
OFFERED = {**PACKED, "all.tar.gz": ARCHIVE.getvalue()}


def facts(content: bytes, download: str, packed: bytes, mirrors: tuple[str, ...] = ()) -> DataFile:
    digests = [hashlib.sha256(data).hexdigest() for data in (content, packed)]
    return DataFile(digests[0], download, digests[1], mirrors)


def offer(patch: pytest.MonkeyPatch, *mirrors: str, archive: bool = False) -> None:
    """The data set "toy" with these mirrors."""
    names = {name: "all.tar.gz" if archive else f"{name}.gz" for name in CONTENT}
    entries = {n: facts(c, names[n], OFFERED[names[n]], mirrors) for n, c in CONTENT.items()}
    patch.setitem(CATALOGUE, "toy", entries)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CONCEPTORS_DATA/toy; the cache is empty."""
    monkeypatch.setenv("CONCEPTORS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CONCEPTORS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("conceptors.experiments.scenarios.data.files.RETRIES", 0)
    offer(monkeypatch)
    load.cache_clear()
    (tmp_path / "data" / "toy").mkdir(parents=True)
    return tmp_path / "data" / "toy"


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """What a server on this machine offers; the first mirror is empty."""
    offered = dict(OFFERED)

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = offered.get(self.path[1:])
            self.send_response(200 if content else 404)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    address = f"http://127.0.0.1:{server.server_address[1]}"
    offer(monkeypatch, f"{address}/lost", address)
    yield offered
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("packing", ["", ".gz", "pieces"])
def test_the_folder_comes_first(packing: str, folder: Path) -> None:
    pack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress}
    for name, content in CONTENT.items():
        for i in range(3 if packing == "pieces" else 0):
            piece = lzma.compress(content[i * 5000 : (i + 1) * 5000])
            (folder / f"{name[:-4]}-{i}.bin.xz").write_bytes(piece)
        if packing != "pieces":
            (folder / f"{name}{packing}").write_bytes(pack.get(packing, bytes)(content))
    before = {p: p.read_bytes() for p in folder.iterdir()}
    assert fetch("toy") == CONTENT
    assert set(where("toy").values()) <= set(before)
    assert {p: p.read_bytes() for p in folder.iterdir()} == before
    assert not (folder.parents[1] / "cache").exists()  # a read-only cache is enough


@pytest.mark.parametrize("archive", [False, True])
def test_a_mirror_is_asked_once(
    archive: bool, mirror: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, *CATALOGUE["toy"]["beta.bin"].mirrors, archive=archive)
    assert set(where("toy").values()) == {None}
    assert fetch("toy") == CONTENT
    mirror.clear()
    assert fetch("toy") == CONTENT
    path = where("toy")["beta.bin"]
    assert path
    path.write_bytes(b"damaged")
    mirror.update(OFFERED)
    assert fetch("toy") == CONTENT


def test_offline_machines_know_what_to_get(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "alpha.bin").write_bytes(CONTENT["alpha.bin"])
    with pytest.raises(DataUnavailableError) as error:
        fetch("toy")
    assert f"Put beta.bin.gz into {folder} and set CONCEPTORS_DATA" in str(error.value)
    offer(monkeypatch, "https://here.invalid")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataUnavailableError, match=r"pip install 'conceptors\[data\]'"):
        fetch("toy")
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        load("mnits")


def test_files_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def provide(name: str, contents: dict[str, bytes]) -> None:
        (folder.parent / name).mkdir()
        for file, content in contents.items():
            (folder.parent / name / file).write_bytes(content)
        monkeypatch.setitem(CATALOGUE, name, {f: facts(c, f, c) for f, c in contents.items()})

    monkeypatch.setattr("conceptors.experiments.scenarios.data.read.VALIDATION", 2)
    values, contents = list[torch.Tensor](), {}
    for part, n in (("train", 5), ("t10k", 3)):
        for kind, shape, most in (("images-idx3", (n, 28, 28), 256), ("labels-idx1", (n,), 10)):
            values.append(torch.randint(most, shape).byte())
            sizes = b"".join(size.to_bytes(4, "big") for size in shape)
            numbers = bytes(values[-1].flatten().tolist())
            contents[f"{part}-{kind}-ubyte"] = bytes([0, 0, 8, len(shape)]) + sizes + numbers
    provide("mnist", contents)
    train, validation, test = load("mnist").parts
    for k in (0, 1):  # images, labels
        assert torch.equal(torch.cat([validation[k], train[k]]), values[k].flatten(1 - k))
        assert torch.equal(test[k], values[2 + k].flatten(1 - k))
    assert len(validation[1]) == 2  # the first images
    provide("fashion-mnist", dict.fromkeys(contents, b"no idx file"))
    with pytest.raises(ValueError, match="not an idx file"):
        load("fashion-mnist")
    records = torch.randint(100, (4, 3074)).byte()
    content = bytes(records.flatten().tolist())
    provide("cifar100", {"train.bin": content, "test.bin": content[:3074]})
    (x, y), *_, test = load("cifar100").parts
    assert (x.shape, test[0].shape) == ((2, 3, 32, 32), (1, 3, 32, 32))
    assert torch.equal(y, records[2:, 1])  # the fine labels
    assert torch.equal(x[0, 1, 0, 5], records[2, 2 + 1024 + 5])
