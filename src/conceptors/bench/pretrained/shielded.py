"""`Shield(model)`, with nothing chosen but the rate and the kind of head."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from conceptors import Shield
from conceptors.bench.pretrained.lesson import train
from conceptors.bench.pretrained.methods import Method, Settings
from conceptors.bench.pretrained.stream import Stream


class Shielded(Method):
    """Three lines: a shield, a guard for the optimizer, and `remember` after each domain."""

    name = "shield"
    about = "`Shield(model)`, its rate and kind of head chosen"
    defaults: ClassVar[Settings] = {"rate": 1e-4, "heads": "own"}
    grid: ClassVar[list[Settings]] = [
        {"rate": rate, "heads": heads} for rate in (1e-4, 3e-5, 1e-5) for heads in ("own", "one")
    ]

    def __init__(self, stream: Stream, settings: Settings, seed: int, device: str) -> None:
        super().__init__(stream, settings, seed, device)
        self.shield = Shield(self.model, warn_at_quota=1.0)

    def learn(self, domain: int) -> None:
        part = self.stream.parts["train"][domain]
        train(self.model, part, domain, self.settings, prepare=self.shield.guard)
        remember(self.shield, part.batches(256), domain)

    def stored(self) -> int:
        return numbers_in(self.shield.state_dict())


def remember(shield: Shield, batches: list[Tensor], domain: int) -> None:
    """The domain's own head is the one that is used, as in training."""
    shield.remember(batches, feed=lambda model, ids: model(ids, domain))


def numbers_in(state: Any) -> int:
    """How many numbers a state dict holds, in tensors at any depth."""
    if isinstance(state, Tensor):
        return state.numel()
    if isinstance(state, dict):
        return sum(map(numbers_in, state.values()))
    if isinstance(state, (list, tuple)):
        return sum(map(numbers_in, state))
    return 0
