"""Settings and environment as tables: what all methods share, and where they differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from conceptors.report import measures
from conceptors.report.text import MISSING


@dataclass(frozen=True)
class Settings:
    """Pairs shared by all methods; for the rest, one row per setting with each method's value."""

    shared: list[tuple[str, str]]
    methods: list[str]
    rows: list[tuple[str, list[str]]]


def settings(results: dict[str, Any]) -> Settings:
    """The configurations of all methods; the seed is left out."""
    names = measures.methods(results)
    found = {name: _of(results, name) for name in names}
    keys = list(dict.fromkeys(key for values in found.values() for key in values))
    shared, rows = [], []
    for key in keys:
        values = [found[name].get(key, MISSING) for name in names]
        if len(set(values)) == 1:
            shared.append((key, values[0]))
        else:
            rows.append((key, values))
    return Settings(shared, names, rows)


def pairs(given: dict[str, Any]) -> list[tuple[str, str]]:
    """A dictionary as pairs of texts."""
    return [(str(key), show(value)) for key, value in given.items()]


def show(value: Any) -> str:
    """A setting as people write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value or "(empty)"
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False)


def _of(results: dict[str, Any], method: str) -> dict[str, str]:
    """Each setting of a method; values that change from seed to seed one after another."""
    found: dict[str, list[str]] = {}
    for run in measures.runs_of(results, method):
        for key, value in (run.get("config") or {}).items():
            if key != "seed":
                found.setdefault(str(key), []).append(show(value))
    return {key: ", ".join(dict.fromkeys(values)) for key, values in found.items()}
