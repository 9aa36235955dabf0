"""Layers that a task uses while they are frozen, of which nothing is protected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from conceptors.shield.blocks import WeightBlock


class Resting:
    """The layers that remembered tasks have used while they were frozen.

    Attributes:
        names: the names of these layers, without those that were reported as trained again.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._used: set[str] = set()

    @contextmanager
    def watching(self, blocks: Mapping[str, WeightBlock]) -> Iterator[None]:
        """Record which of these frozen blocks a pass over a task uses."""
        self._used = set()
        with ExitStack() as hooks:
            for name, block in blocks.items():
                for source in block.sources:
                    handle = source.layer.register_forward_pre_hook(self._record(name))
                    hooks.callback(handle.remove)
            yield

    def _record(self, name: str) -> Any:
        def record(_layer: nn.Module, _args: Any) -> None:
            self._used.add(name)

        return record

    def settle(self) -> None:
        """Add the layers of the last pass, whose task is now remembered."""
        self.names |= self._used
        self._used = set()

    def woken(self, learning: Iterable[str]) -> list[str]:
        """Return the trained layers that tasks have used while frozen, each only once."""
        woken = [name for name in learning if name in self.names]
        self.names.difference_update(woken)
        return woken
