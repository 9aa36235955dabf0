"""Conceptors in safetensors files: a few tensors and a header; loading executes no code."""

from __future__ import annotations

import json
import math
from pathlib import Path

from conceptors._internal import checks, storage
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.checks import check_spectrum
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import SpectrumForm
from conceptors.algebra.spectrum import Spectrum

FORMAT = "conceptors.Conceptor"
VERSION = 1


def save(conceptor: Conceptor, path: str | Path) -> None:
    """Write `conceptor` to `path` (safetensors, with version, aperture and a checksum).

    The write is atomic: the file is written beside `path` and then renamed.

    Raises:
        OSError: the folder is read-only or full; an older file stays intact.
    """
    parts = conceptor.form.spectrum()
    tensors = {"vectors": parts.vectors, "odds": parts.odds}
    if conceptor._aperture is not None:
        tensors["aperture"] = conceptor._aperture
    header = {"format": FORMAT, "version": str(VERSION), "rest": json.dumps(conceptor.spectrum[2])}
    storage.write(tensors, header, path)


def load(path: str | Path) -> Conceptor:
    """Read a conceptor that `save` wrote, onto the CPU (move it with `.to(device)`).

    Raises:
        ValueError: the file is damaged, contains no conceptor, or has a newer version.
    """
    tensors, header = storage.read(path, "conceptor")
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} contains no conceptor (format {header.get('format')!r:.60}, tensors "
            f"{sorted(tensors)[:5]}); write it with C.save(path)"
        )
    if header.get("version") != str(VERSION):
        raise ValueError(
            f"{path} has conceptor file version {header.get('version')!r:.60}; this release reads "
            f"version {VERSION}: upgrade with pip install -U conceptors"
        )
    try:
        vectors, odds, aperture = tensors["vectors"], tensors["odds"], tensors.get("aperture")
        if bool((checks.real_tensor(odds, "odds").isnan() | (odds < 0)).any()):
            raise ValueError("odds must be numbers in [0, inf]")
        _, values, rest = check_spectrum(
            vectors, spectra.values_of(odds), json.loads(header["rest"])
        )
        if aperture is not None:
            aperture = checks.aperture(aperture, values.shape[:-1], values)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is marked as a conceptor file but its content is not valid: {error!s:.500}"
        ) from error
    spectrum = Spectrum(vectors, odds, math.inf if rest else 0.0)
    return Conceptor.from_form(SpectrumForm(spectrum, odds.dtype), aperture)
