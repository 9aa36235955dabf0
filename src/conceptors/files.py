"""Conceptors as safetensors files: a few tensors and a header, read without executing anything."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conceptors.conceptor import Conceptor

FORMAT = "conceptors.Conceptor"
VERSION = 1


def save(conceptor: Conceptor, path: str | Path) -> None:
    """Write `conceptor` to `path` (safetensors, with version, dtype and aperture).

    The file appears whole or not at all: it is written beside `path` and then renamed.

    Raises:
        ImportError: safetensors is not installed.
        OSError: the folder does not exist, is read-only or full; an older file stays as it was.
    """
    safetensors = _safetensors()
    if not isinstance(conceptor, Conceptor):
        raise TypeError(f"save needs a Conceptor, got {type(conceptor).__name__}")
    vectors, values, rest = conceptor.spectrum
    odds = conceptor._parts().odds
    tensors = {"vectors": vectors, "odds": odds, "values": values}
    if conceptor._aperture is not None:
        tensors["aperture"] = conceptor._aperture
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "dtype": str(conceptor.dtype).removeprefix("torch."),
        "rest": json.dumps(rest),
    }
    data = safetensors.save({k: v.cpu().contiguous() for k, v in tensors.items()}, header)
    write_atomically(Path(path), data)


def load(path: str | Path) -> Conceptor:
    """Read a conceptor that `save` wrote, onto the CPU (move it with `.to(device)`).

    Raises:
        FileNotFoundError: no such file.
        ValueError: damaged, not a conceptor file, of a newer version, or holding numbers that
            are no conceptor.
    """
    safetensors = _safetensors()
    data = Path(path).read_bytes()
    try:
        tensors: dict[str, Tensor] = safetensors.load(data)
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except Exception as error:
        raise ValueError(
            f"{path} is damaged or not a safetensors file ({len(data)} bytes: {error}); "
            f"restore it from a copy, or save the conceptor again"
        ) from error
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} is a safetensors file but holds no conceptor (format "
            f"{header.get('format')!r}, tensors {sorted(tensors)}); write it with C.save(path)"
        )
    if header.get("version") != str(VERSION):
        raise ValueError(
            f"{path} has conceptor file version {header.get('version')!r}; this release reads "
            f"version {VERSION}: upgrade with pip install -U conceptors"
        )
    try:
        rest = json.loads(header["rest"])
        found = Conceptor.from_spectrum(tensors["vectors"], tensors["values"], rest=rest)
        odds, aperture = tensors["odds"], tensors.get("aperture")
        if odds.shape != tensors["values"].shape or bool((odds.isnan() | (odds < 0)).any()):
            raise ValueError(f"odds of shape {list(odds.shape)} are not numbers in [0, inf]")
        if str(found.dtype) != f"torch.{header['dtype']}" or odds.dtype != found.dtype:
            raise ValueError(f"dtype {header['dtype']} does not match tensors of {found.dtype}")
        if aperture is not None and (
            aperture.shape != found.batch_shape
            or aperture.dtype != found.dtype
            or not bool(((aperture > 0) & torch.isfinite(aperture)).all())
        ):
            raise ValueError(f"aperture {aperture.tolist()} is not positive and finite")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is marked as a conceptor file but its content is not valid: {error}"
        ) from error
    spectrum = found._parts()._replace(odds=odds)
    return Conceptor._make(found.dtype, spectrum=spectrum, aperture=aperture)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash or a full disk leaves the old content or the new, whole."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError(
            "conceptor files need safetensors: pip install 'conceptors[files]'"
        ) from None
    return safetensors.torch
