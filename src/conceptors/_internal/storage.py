"""Atomic writes, and files of tensors: checked by checksum, loaded without executing code."""

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conceptors._internal.checks import needs


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
    with needs("files", "saving needs safetensors"):
        import safetensors.torch
    return safetensors.torch


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: a crash or a full disk leaves either the old or the new content.

    A missing folder is created, a link at `path` replaced. Several processes may write at once:
    each writes its own temporary file, and the last rename wins.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
