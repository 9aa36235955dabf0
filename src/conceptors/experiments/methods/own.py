"""Your own methods, from a Python file."""

from __future__ import annotations

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def import_methods(file: str | Path) -> None:
    """Run a Python file that registers methods with `conceptors.methods.add`; once only.

    Raises:
        ValueError: no such file, or it fails; the message names the line.
    """
    path = Path(file).expanduser().resolve()
    name = f"conceptors_import:{path}"
    if name in sys.modules:
        return
    spec = spec_from_file_location(name, path) if path.suffix == ".py" and path.is_file() else None
    if spec is None or spec.loader is None:
        raise ValueError(f"--import takes a Python file, and there is no file {str(file)!r}")
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = lines[-1] if lines else getattr(error, "lineno", "?")
        kind = type(error).__name__
        raise ValueError(f"--import {file}, line {line}: {kind}: {error}") from error
