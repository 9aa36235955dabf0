"""Tensors in safetensors files: checked by a checksum, whole or not at all, never executed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conceptors._internal.files import write_atomically


def write(tensors: Mapping[str, Tensor], header: Mapping[str, str], path: str | Path) -> None:
    """Write tensors and a header of strings.

    Raises:
        ImportError: safetensors is not installed.
        OSError: the folder does not exist, is read-only or full; an older file stays as it was.
    """
    safetensors = _safetensors()
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    signed = {**header, "sha256": digest(plain, header)}
    write_atomically(Path(path), safetensors.save(plain, signed))


def read(path: str | Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a file that `write` wrote; `what` names its kind in errors.

    Raises:
        FileNotFoundError: no such file.
        ValueError: damaged, or not such a file.
    """
    safetensors = _safetensors()
    data = Path(path).read_bytes()
    try:
        tensors: dict[str, Tensor] = safetensors.load(data)
        size = int.from_bytes(data[:8], "little")
        header: dict[str, str] = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except Exception as error:
        raise ValueError(
            f"{path} is damaged or not a safetensors file ({len(data)} bytes: {error}); "
            f"restore it from a copy, or save the {what} again"
        ) from error
    if "sha256" not in header:
        raise ValueError(
            f"{path} is a safetensors file but holds no {what} (format "
            f"{header.get('format')!r:.60}, tensors {sorted(tensors)[:5]})"
        )
    if header.pop("sha256") != digest(tensors, header):
        raise ValueError(
            f"{path} is damaged: its content does not match its checksum; restore it from a copy, "
            f"or save the {what} again"
        )
    return tensors, header


def digest(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """SHA-256 of all that a file says, so that no flipped bit goes unnoticed."""
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError("files need safetensors: pip install 'conceptors[files]'") from None
    return safetensors.torch
