"""The cache of data sets: checked on use, and never larger than the catalogue says.

Below the cache folder itself no link is followed: what others put there cannot make us write
anywhere else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conceptors._internal.files import replacing, sweep
from conceptors.experiments.scenarios.data.catalogue import DataFile, DataSet

CHUNK = 1 << 20


class DataUnavailableError(RuntimeError):
    """A data set is neither here nor to be had; the message says what to put where."""


def cache_folder() -> Path:
    """Where fetched data is kept: CONCEPTORS_CACHE, or conceptors in the user's cache folder."""
    if chosen := os.environ.get("CONCEPTORS_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "conceptors"


def writable(name: str) -> Path:
    """A folder of the cache, made if need be; an error that says so where it cannot be used."""
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"
    except OSError as error:
        why = error.strerror or str(error)
    if folder.is_symlink():
        why = "it is a link, which might lead anywhere"
    if why:
        raise DataUnavailableError(
            f"cannot write into the cache folder {folder}: {why}; set CONCEPTORS_CACHE to a "
            f"folder that you may write to"
        )
    return folder


def cached(data: DataSet, file: DataFile) -> Path | None:
    """The file in the cache, if it is the right one to the last bit."""
    path = cache_folder() / data.name / file.name
    try:
        if path.stat().st_size != file.size:
            return None
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None
    return path if found == file.sha256 else None


def read_checked(path: Path, file: DataFile) -> bytearray:
    """The content that is used, checked again: the file may have changed since it was found."""
    with path.open("rb") as stream:
        content = bytearray(stream.read(file.size + 1))
    if len(content) != file.size or hashlib.sha256(content).hexdigest() != file.sha256:
        raise ValueError(f"{path} has changed while it was read; try again")
    return content


def store(data: DataSet, file: DataFile, source: Callable[[], Any]) -> None:
    """Copy a stream into the cache, checked, under a temporary name until it is whole."""
    path = writable(data.name) / file.name
    total, count = hashlib.sha256(), 0
    with replacing(path) as target, source() as stream:
        while chunk := stream.read(min(CHUNK, file.size + 1 - count)):
            count += len(chunk)
            if count > file.size:
                raise ValueError(f"{file.name} is larger than its {file.size} bytes: another file")
            total.update(chunk)
            target.write(chunk)
        if total.hexdigest() != file.sha256:
            raise ValueError(
                f"{file.name} has SHA-256 {total.hexdigest()[:16]}… instead of "
                f"{file.sha256[:16]}…: damaged, truncated or another file"
            )


def sweep_cache(data: DataSet) -> None:
    """Remove what killed runs have left of a data set."""
    for file in data.files:
        sweep(cache_folder() / data.name / file.name)


class Limited:
    """A stream that refuses to give more than so many bytes: packed files can hold anything."""

    def __init__(self, stream: Any, limit: int, name: str) -> None:
        self._stream, self._left, self._limit, self._name = stream, limit, limit, name

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._stream.read(min(CHUNK, size) if size >= 0 else self._left + 1)
        self._left -= len(found)
        if self._left < 0:
            raise ValueError(f"{self._name} unpacks to more than {self._limit} bytes")
        return found

    def __enter__(self) -> Limited:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
