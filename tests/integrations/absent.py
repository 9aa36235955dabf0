"""Stand-ins for what Avalanche imports and these tests never call: images, plots, downloads.

Where torchvision cannot be loaded beside the torch in use, Avalanche could not be imported at all.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAMES = ("torchvision", "matplotlib", "pytorchcv", "GPUtil", "gdown", "qpsolvers", "wandb", "dill")


class Empty(ModuleType):
    """A module of classes that do nothing, and of functions that leave alone what they decorate."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = lambda *args, **kwargs: lambda decorated: decorated  # noqa: E731
        if name[0].isupper():
            value = type(name, (), {"__module__": self.__name__, "__init__": lambda *a, **k: None})
        setattr(self, name, value)
        return value


class StandIn(MetaPathFinder, Loader):
    """Finds what nothing else has found."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        known = name.split(".", maxsplit=1)[0] in self.names
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def stand_ins() -> Iterator[None]:
    """For those that cannot be imported, while this lasts; afterwards they are gone again."""
    missing = []
    for name in NAMES:
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError, OSError):  # also: operators that this torch has not
            missing.append(name)
    for name in [n for n in sys.modules if n.split(".")[0] in missing]:
        del sys.modules[name]  # half-imported
    finder = StandIn(missing)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.split(".")[0] in missing]:
            del sys.modules[name]
