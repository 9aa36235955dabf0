"""Atomic writes, and files of tensors: checked by checksum, loaded without executing code."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_ENDING = ".part"


def write(tensors: Mapping[str, Tensor], header: Mapping[str, str], path: str | Path) -> None:
    """Write tensors and a header of strings as a safetensors file; raise OSError on failure."""
    safetensors = _safetensors()
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    signed = {**header, "sha256": digest(plain, header)}
    write_atomically(Path(path), safetensors.save(plain, signed))


def read(path: str | Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and header of a file that `write` wrote; raise ValueError for other files."""
    safetensors = _safetensors()
    data = Path(path).read_bytes()
    remedy = f"restore it from a copy, or save the {what} again"
    try:
        tensors: dict[str, Tensor] = safetensors.load(data)
        size = int.from_bytes(data[:8], "little")
        header: dict[str, str] = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except Exception as error:
        raise ValueError(
            f"{path} is damaged or not a safetensors file ({len(data)} bytes: {error}); {remedy}"
        ) from error
    if "sha256" not in header:
        raise ValueError(
            f"{path} contains no {what} but tensors {sorted(tensors)[:5]}; pass a file of `save`"
        )
    if header.pop("sha256") != digest(tensors, header):
        raise ValueError(f"{path} is damaged: its content does not match its checksum; {remedy}")
    return tensors, header


def digest(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """Return the SHA-256 of all content, which detects every flipped bit."""
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError("saving needs safetensors: pip install 'conceptors[files]'") from None
    return safetensors.torch


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: a crash or a full disk leaves either the old or the new content.

    A missing folder is created, a link at `path` replaced. Several processes may write at once:
    each writes its own temporary file, and the last rename wins. Files of killed processes are
    removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    handle, temporary = _create(path)
    file = os.fdopen(handle, "wb")
    try:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        if sys.platform == "win32":
            file.close()  # an open file cannot be renamed there
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        file.close()  # after the rename: the lock shows that this process is alive
    _sync_folder(path.parent)


def _sweep(path: Path) -> None:
    """Remove temporary files of `path` whose writers have ended."""
    if sys.platform == "win32":
        return
    for orphan in path.parent.glob(f".{escape(path.name)}.*{_ENDING}"):
        # OSError: the file belongs to another user, or has been removed
        with suppress(OSError), os.fdopen(os.open(orphan, os.O_RDWR | os.O_NOFOLLOW)) as file:
            if _lock(file.fileno()):
                os.unlink(orphan)


def _create(path: Path) -> tuple[int, str]:
    """Create a locked file beside `path`; retry if a sweep was faster than the lock."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_ENDING)
        if sys.platform == "win32":
            return handle, name
        try:
            if _lock(handle) and os.path.samestat(os.fstat(handle), os.stat(name)):
                return handle, name
        except FileNotFoundError:
            pass
        except OSError:  # without locks nobody sweeps either
            return handle, name
        os.close(handle)


def _lock(handle: int) -> bool:
    """Whether no other process has locked the file; locks end with their processes."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename permanent: after a crash, the name refers to the new file."""
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
