"""Data sets by name: searched on this machine, downloaded, checked and read."""

from conceptors.experiments.scenarios.data.files import (
    CATALOGUE,
    DataFile,
    DataUnavailableError,
    cache_folder,
    fetch,
    where,
)
from conceptors.experiments.scenarios.data.read import Arrays, load

__all__ = [
    "CATALOGUE",
    "Arrays",
    "DataFile",
    "DataUnavailableError",
    "cache_folder",
    "fetch",
    "load",
    "where",
]
