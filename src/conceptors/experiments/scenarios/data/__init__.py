"""Data sets by name: found, fetched, verified and cached."""

from conceptors.experiments.scenarios.data.cache import DataUnavailableError, cache_folder
from conceptors.experiments.scenarios.data.catalogue import CATALOGUE, DataFile, DataSet
from conceptors.experiments.scenarios.data.fetch import fetch, locate, where
from conceptors.experiments.scenarios.data.read import Arrays, load

__all__ = [
    "CATALOGUE",
    "Arrays",
    "DataFile",
    "DataSet",
    "DataUnavailableError",
    "cache_folder",
    "fetch",
    "load",
    "locate",
    "where",
]
