"""Layers that a task uses while nothing of them learns: nothing is claimed of them either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from conceptors.shield.blocks import WeightBlock


class Resting:
    """Which layers remembered tasks have used while they were frozen.

    Attributes:
        names: of these, as far as it was not told yet that they learn again.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._met: set[str] = set()

    @contextmanager
    def watching(self, blocks: Mapping[str, WeightBlock]) -> Iterator[None]:
        """See which of these frozen blocks a pass over a task uses."""
        self._met = set()
        with ExitStack() as hooks:
            for name, block in blocks.items():
                for source in block.sources:
                    handle = source.layer.register_forward_pre_hook(self._meet(name))
                    hooks.callback(handle.remove)
            yield

    def _meet(self, name: str) -> Any:
        def meet(_layer: nn.Module, _args: Any) -> None:
            self._met.add(name)

        return meet

    def settle(self) -> None:
        """That pass is remembered."""
        self.names |= self._met
        self._met = set()

    def woken(self, learning: Iterable[str]) -> list[str]:
        """Those of some layers that were frozen before; each once."""
        found = [name for name in learning if name in self.names]
        self.names.difference_update(found)
        return found
