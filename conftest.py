"""Modules for frameworks that are not installed have no doctests to collect."""

from importlib.util import find_spec

collect_ignore = [
    f"src/conceptors/integrations/{name}.py"
    for name in ("transformers", "lightning", "avalanche")
    if find_spec(name) is None
]
