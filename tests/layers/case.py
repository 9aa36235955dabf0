"""An entry of the table of layers: how to make and to feed a layer, and what is known about it.

Every entry is so small that one batch of inputs (or `old`) leaves directions of each block's input
space unused: there is something to protect and room to learn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from layers.references import Inputs, Rows


class Draw:
    """Random inputs, the same for the same seed."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64, batch: int = 2) -> None:
        self.dtype, self.batch = dtype, batch
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=self._generator, dtype=torch.float64)
        return drawn.to(self.dtype)

    def tokens(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self._generator)

    def x(self, *shape: int) -> Tensor:
        """A batch of samples of this shape."""
        return self.normal(self.batch, *shape)


Feed = Callable[[Draw], Inputs]


@dataclass(frozen=True)
class Case:
    """A layer, its inputs, and what is known about it from elsewhere."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Feed
    rows: Callable[[Any, Inputs, Any], Rows] | None = None  # by hand, where products stay inside
    outputs: Callable[[Any, Any], Tensor] | None = None  # the last block's products, [g, n, out]
    old: Feed | None = None  # inputs that leave free space, where `inputs` do not
    empty: bool = True  # the layer itself takes an empty batch

    def build(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
        """The layer in evaluation mode, with weights that depend on the seed alone."""
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            layer = self.make()
            for name, parameter in layer.named_parameters():
                if parameter.ndim == 1:  # norms begin as the identity, biases often as zero
                    with torch.no_grad():
                        parameter.copy_(torch.randn(len(parameter)) / 2 + ("weight" in name))
        return layer.to(dtype).eval()


def only(*args: Any, **kwargs: Any) -> Inputs:
    return Inputs(args, kwargs)


def shaped(*shape: int) -> Feed:
    return lambda draw: only(draw.x(*shape))


def there(inputs: Inputs, device: str) -> Inputs:
    """The same inputs on a device."""

    def move(value: Any) -> Any:
        movable: Any = (Tensor, PackedSequence)
        return value.to(device) if isinstance(value, movable) else value

    return Inputs(*tree_map(move, tuple(inputs), is_leaf=lambda v: isinstance(v, PackedSequence)))


def flat_channels(channels: int, *space: int) -> Feed:
    """Channels with one exact number each: a channel's [x; 1] is one direction of two."""

    def feed(draw: Draw) -> Inputs:
        levels = (draw.normal(channels) * 4).round() / 4
        return only(levels[:, *[None] * len(space)].expand(draw.batch, channels, *space).clone())

    return feed


def silence(*shape: int) -> Feed:
    """Nothing at all: what a norm makes of it does not depend on its weight."""
    return lambda draw: only(draw.x(*shape) * 0)


def half_silent(size: int) -> Feed:
    """Mean zero over the features, and exactly zero in half of them."""

    def feed(draw: Draw) -> Inputs:
        v = draw.x(size // 4)
        return only(torch.cat([v, -v, torch.zeros(draw.batch, size // 2, dtype=draw.dtype)], -1))

    return feed


def few_tokens(feed: Feed) -> Feed:
    """Only even tokens."""

    def rounded(draw: Draw) -> Inputs:
        args, kwargs = feed(draw)
        return Inputs((args[0] // 2 * 2, *args[1:]), kwargs)

    return rounded
