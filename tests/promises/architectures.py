"""Networks drawn by a seed: an entry, parts in a row, heads, some of them shared or tied.

They are tiny and wide: what a task of few samples claims leaves room for the next one.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from promises.parts import PARTS, WIDTHS, Form, coin
from shield.common import Unknown

TIME = 3
VOCABULARY = 24


class Bags(nn.Module):
    """Three tokens at every position as one vector."""

    def __init__(self, layer: nn.EmbeddingBag) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Tensor) -> Tensor:
        bags = torch.stack([tokens, (tokens + 5) % VOCABULARY, tokens], -1).flatten(0, 1)
        return self.layer(bags).reshape(*tokens.shape, -1)  # type: ignore[no-any-return]


class Positions(nn.Module):
    """Tokens, and where they are."""

    def __init__(self, tokens: nn.Module, width: int) -> None:
        super().__init__()
        self.tokens, self.places = tokens, nn.Embedding(TIME, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))  # type: ignore[no-any-return]


class Network(nn.Module):
    """An entry, parts in some order (one may come twice), heads, and branches of later tasks."""

    def __init__(self, entry: nn.Module, parts: list[nn.Module], order: list[int]) -> None:
        super().__init__()
        self.entry, self.parts, self.order = entry, nn.ModuleList(parts), order
        self.heads, self.branches = nn.ModuleList(), nn.ModuleDict()

    def forward(self, x: Tensor, task: int = 0) -> Tensor:
        for index in [-1, *self.order]:
            x = self.entry(x) if index < 0 else self.parts[index](x)
        if f"task{task}" in self.branches:
            x = x + self.branches[f"task{task}"](x)
        return self.heads[min(task, len(self.heads) - 1)](x)  # type: ignore[no-any-return]


class Plan(NamedTuple):
    """How a network is made, the same each time."""

    make: Callable[[int], Network]  # as it is when it comes to a task
    grow: Callable[[Network, int], None]  # adds the layers of a task
    inputs: Callable[[int, torch.Generator], Tensor]  # of so many samples
    sparse: bool  # has sparse gradients
    strange: bool  # has parameters that no rule covers
    text: str


def plan(seed: int, tasks: int) -> Plan:
    """A network drawn by a seed."""
    draw = Random(f"network {seed}")
    heads = draw.choice([1, tasks])
    grows = heads > 1 and coin(draw)
    branched = coin(draw, 0.2)
    entry = draw.choice(["vectors", "Linear", "Embedding", "Embedding", "EmbeddingBag"])
    sparse = entry.startswith("Embedding") and coin(draw, 0.15)
    decoder = entry == "Embedding" and not sparse and coin(draw, 0.4)
    strange, start = coin(draw, 0.06), draw.choice(WIDTHS)
    body = draw.getrandbits(32)
    words: list[str] = []

    def make(task: int) -> Network:
        again = Random(body)
        words.clear()
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            first = _entry(again, entry, start, sparse)
            parts, order, form = _body(again, Form(TIME, start), words)
            if strange:
                parts.append(Unknown(form.width))
                order.append(len(parts) - 1)
            network = Network(first, parts, order)
            for number in range(task + 1):
                _grow(network, number, heads, grows, branched, form.width)
            if decoder:
                _tie(network, form.width)
            _spread(network)
        return network.double()

    def grow(network: Network, task: int) -> None:
        last: Any = network.heads[-1]
        first: Any = last[0] if isinstance(last, nn.Sequential) else last
        _grow(network, task, heads, grows, branched, first.in_features)
        network.double()

    def inputs(count: int, generator: torch.Generator) -> Tensor:
        if entry.startswith("Embedding"):
            return torch.randint(VOCABULARY, (count, TIME), generator=generator)
        return torch.randn(count, TIME, start, generator=generator, dtype=torch.float64)

    make(0)
    words += ["unknown layer"] * strange + ["tied decoder"] * decoder + ["branches"] * branched
    words.append(f"{heads} head{'s' * (heads > 1)}{' that come' * grows}")
    text = f"{entry}{' sparse' * sparse} {start} | {' | '.join(words)}"
    return Plan(make, grow, inputs, sparse, strange, text)


def _entry(draw: Random, kind: str, width: int, sparse: bool) -> nn.Module:
    if kind == "vectors":
        return nn.Identity()
    if kind == "Linear":
        return nn.Linear(width, width)
    if kind == "EmbeddingBag":
        mode = draw.choice(["sum", "mean", "max"]) if not sparse else "sum"
        return Bags(nn.EmbeddingBag(VOCABULARY, width, mode=mode, sparse=sparse))
    padding, often = draw.choice([None, 0]), coin(draw, 0.2) and not sparse
    tokens = nn.Embedding(
        VOCABULARY, width, padding_idx=padding, scale_grad_by_freq=often, sparse=sparse
    )
    return Positions(tokens, width) if coin(draw, 0.3) and not sparse else tokens


def _body(draw: Random, form: Form, words: list[str]) -> tuple[list[nn.Module], list[int], Form]:
    parts: list[nn.Module] = []
    order: list[int] = []
    for _ in range(draw.randint(1, 4)):
        part, text = draw.choice(PARTS)(draw, form)
        with torch.no_grad():
            after = part.eval()(torch.randn(2, *form)).shape
        if after[1] > 7 or after[1] < 2 or not 16 <= after[2] <= 64:
            continue
        part.train()
        parts.append(part)
        order.append(len(parts) - 1)
        if Form(*after[1:]) == form and coin(draw, 0.2):
            order.append(len(parts) - 1)
            text = f"2 x {text}"
        form = Form(*after[1:])
        words.append(text)
    return parts, order, form


def _grow(network: Network, task: int, heads: int, grows: bool, branched: bool, width: int) -> None:
    """What a network gets before a task."""
    if task == 0 or grows:
        for _ in range(1 if grows else heads):
            network.heads.append(nn.Linear(width, 3))
    if branched and task:
        network.branches[f"task{task}"] = nn.Sequential(nn.Linear(width, width), nn.Tanh())


def _tie(network: Network, width: int) -> None:
    """The last head decodes by the weights of the embedding."""
    entry: Any = network.entry.tokens if isinstance(network.entry, Positions) else network.entry
    decoder = nn.Linear(entry.embedding_dim, VOCABULARY)
    decoder.weight = entry.weight
    network.heads[0] = nn.Sequential(nn.Linear(width, entry.embedding_dim), decoder)


def _spread(network: nn.Module) -> None:
    """Draw the parameters of norms and biases, which begin as constants."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.randn(len(parameter)) / 3 + ("weight" in name))
