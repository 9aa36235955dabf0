"""The engine that the command line asks for."""

from __future__ import annotations

import argparse
from pathlib import Path

from conceptors.experiments.engines import Engine, Local, Ray, Resources, Slurm
from conceptors.experiments.experiment import ExperimentError

# which of these words go with which engine
_WORDS = {
    "address": ("ray",),
    "cpus_per_run": ("ray", "slurm"),
    "gpus_per_run": ("ray", "slurm"),
    "slurm": ("slurm",),
    "runs_per_job": ("slurm",),
}


def chosen_engine(options: argparse.Namespace, folder: Path) -> Engine:
    """The engine; jobs of Slurm leave outcomes and logs in a folder below `folder`.

    Raises:
        ExperimentError: words that do not go with it, or resources that cannot be.
        ImportError: what it needs is not installed.
    """
    for word, engines in _WORDS.items():
        if getattr(options, word) is not None and options.engine not in engines:
            name = word.replace("_", "-")
            raise ExperimentError(
                f"--{name} goes with --engine {' or '.join(engines)}, not {options.engine}"
            )
    if options.engine == "local":
        return Local()
    gpus = options.gpus_per_run
    resources = Resources(
        cpus=options.cpus_per_run or 1,
        gpus=(1 if options.device.startswith("cuda") else 0) if gpus is None else gpus,
        imports=tuple(str(Path(file).expanduser().resolve()) for file in options.imports),
    )
    if options.engine == "ray":
        return Ray(resources, options.address)
    return Slurm(
        folder / "slurm",
        resources,
        options=dict(_pair(text) for text in options.slurm or []),
        per_job=options.runs_per_job or 1,
    )


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise ExperimentError(f"--slurm takes NAME=VALUE, got {text!r}")
    return name.replace("-", "_"), value
