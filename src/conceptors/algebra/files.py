"""Conceptors as safetensors files: a few tensors and a header, read without executing anything."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from conceptors._internal import storage
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import SpectrumForm

FORMAT = "conceptors.Conceptor"
VERSION = 1


def save(conceptor: Conceptor, path: str | Path) -> None:
    """Write `conceptor` to `path` (safetensors, with version, dtype, aperture and a checksum).

    The file appears whole or not at all: it is written beside `path` and then renamed.

    Raises:
        ImportError: safetensors is not installed.
        OSError: the folder does not exist, is read-only or full; an older file stays as it was.
    """
    if not isinstance(conceptor, Conceptor):
        raise TypeError(f"save needs a Conceptor, got {type(conceptor).__name__}")
    vectors, values, rest = conceptor.spectrum
    tensors = {"vectors": vectors, "odds": conceptor.form.spectrum().odds, "values": values}
    if conceptor._aperture is not None:
        tensors["aperture"] = conceptor._aperture
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "dtype": str(conceptor.dtype).removeprefix("torch."),
        "rest": json.dumps(rest),
    }
    storage.write(tensors, header, path)


def load(path: str | Path) -> Conceptor:
    """Read a conceptor that `save` wrote, onto the CPU (move it with `.to(device)`).

    Raises:
        FileNotFoundError: no such file.
        ValueError: damaged, not a conceptor file, of a newer version, or holding numbers that
            are no conceptor.
    """
    tensors, header = storage.read(path, "conceptor")
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} holds no conceptor (format {header.get('format')!r:.60}, tensors "
            f"{sorted(tensors)[:5]}); write it with C.save(path)"
        )
    if header.get("version") != str(VERSION):
        raise ValueError(
            f"{path} has conceptor file version {header.get('version')!r:.60}; this release reads "
            f"version {VERSION}: upgrade with pip install -U conceptors"
        )
    try:
        rest = json.loads(header["rest"])
        vectors, values, odds = tensors["vectors"], tensors["values"], tensors["odds"]
        found, aperture = (
            Conceptor.from_spectrum(vectors, values, rest=rest),
            tensors.get("aperture"),
        )
        if str(found.dtype) != f"torch.{header['dtype']}" or odds.dtype != found.dtype:
            raise ValueError(f"dtype {header['dtype']} does not match tensors of {found.dtype}")
        if odds.shape != values.shape or bool((odds.isnan() | (odds < 0)).any()):
            raise ValueError(f"odds of shape {list(odds.shape)} are not numbers in [0, inf]")
        if not torch.allclose(spectra.values_of(odds), values, atol=1e-6):
            raise ValueError("odds and values contradict each other")
        if aperture is not None and (
            aperture.shape != found.batch_shape
            or aperture.dtype != found.dtype
            or not bool(((aperture > 0) & torch.isfinite(aperture)).all())
        ):
            raise ValueError(f"aperture {aperture.tolist()} is not positive and finite")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is marked as a conceptor file but its content is not valid: {error!s:.500}"
        ) from error
    spectrum = found.form.spectrum()._replace(vectors=vectors, odds=odds)
    return Conceptor.from_form(SpectrumForm(spectrum, found.dtype), aperture)
