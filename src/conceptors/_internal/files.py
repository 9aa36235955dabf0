"""Files that are there whole or not at all, also when the machine goes down or others write too."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_ENDING = ".part"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash or a full disk leaves the old content or the new, whole."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` at the end, unless an error comes before.

    A link at `path` is replaced, not followed. Several processes may do this at once: each has a
    file of its own, and the last one stays. What killed ones have left is removed.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder; create it first", str(path.parent))
    sweep(path)
    handle, temporary = _create(path)
    file = os.fdopen(handle, "wb")
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        if sys.platform == "win32":
            file.close()  # an open file cannot be renamed there
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        file.close()  # only now: the lock on it says that this process lives
    sync_folder(path.parent)


def sweep(path: Path) -> None:
    """Remove temporary files of `path` whose writers are gone."""
    if sys.platform == "win32":
        return
    for left in path.parent.glob(f".{_escaped(path.name)}.*{_ENDING}"):
        with suppress(OSError):  # it belongs to someone else, or has gone meanwhile
            handle = os.open(left, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if _lock(handle):
                    os.unlink(left)
            finally:
                os.close(handle)


@contextmanager
def alive(path: Path) -> Iterator[str]:
    """The name of a file beside `path` that is held as long as this process is at it."""
    sweep(path)
    handle, temporary = _create(path)
    try:
        yield Path(temporary).name
    finally:
        Path(temporary).unlink(missing_ok=True)
        os.close(handle)


def is_alive(path: Path) -> bool:
    """Whether a process holds this file that it got from `alive`."""
    try:
        handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # someone else's: not ours to judge
    try:
        return sys.platform == "win32" or not _lock(handle)
    except OSError:
        return True
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder last: after a crash the name leads to the new file."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(handle)


def _create(path: Path) -> tuple[int, str]:
    """A locked new file beside `path`; another one where a sweep was faster than the lock."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_ENDING)
        if sys.platform == "win32":
            return handle, name
        try:
            if _lock(handle) and os.path.samestat(os.fstat(handle), os.stat(name)):
                return handle, name
        except FileNotFoundError:
            pass
        except OSError:  # a file system without locks: there nobody sweeps either
            return handle, name
        os.close(handle)


def _lock(handle: int) -> bool:
    """Whether nobody else holds the file; locks go when their processes do."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _escaped(name: str) -> str:
    """A name as a pattern of itself."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
