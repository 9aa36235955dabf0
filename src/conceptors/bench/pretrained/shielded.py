"""`Shield(model)`: with nothing chosen, and with settings chosen on validation sentences."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from conceptors import Auto, Shield
from conceptors.bench.pretrained.lesson import train
from conceptors.bench.pretrained.methods import Method, Settings
from conceptors.bench.pretrained.stream import Stream


class Shielded(Method):
    """Three lines: a shield, a guard for the optimizer, and `remember` after each domain."""

    name = "shield"
    about = "`Shield(model)`, nothing chosen but the rate"
    defaults: ClassVar[Settings] = {"rate": 1e-4, "heads": "own"}
    grid: ClassVar[list[Settings]] = [
        {"rate": rate, "heads": heads} for rate in (1e-4, 3e-5, 3e-4) for heads in ("own", "one")
    ]

    def __init__(self, stream: Stream, settings: Settings, seed: int, device: str) -> None:
        super().__init__(stream, settings, seed, device)
        self.shield = Shield(self.model, **shield_options(self.settings), warn_at_quota=1.0)

    def learn(self, domain: int) -> None:
        part = self.stream.parts["train"][domain]
        train(self.model, part, domain, self.lesson(domain), prepare=self.shield.guard)
        remember(self.shield, part.batches(256), domain)

    def stored(self) -> int:
        return numbers_in(self.shield.state_dict())


class ChosenShield(Shielded):
    """The same with what may be chosen: how much is claimed, how strongly drift is pulled back."""

    name = "shield, chosen"
    about = "`Shield(model)` with settings chosen on validation sentences"
    defaults: ClassVar[Settings] = {"rate": 1e-4, "heads": "own", "share": 0.9, "pull": 20.0}
    grid: ClassVar[list[Settings]] = [
        {"share": 0.95},
        {"heads": "one", "share": 0.95},
        {"pull": 100.0},
        {"heads": "one", "pull": 100.0},
        {"rate": 3e-4, "share": 0.95, "pull": 100.0},
        {"heads": "one", "rate": 3e-4, "share": 0.95, "pull": 100.0},
        {"share": 0.8},
        {"rate": 3e-4, "later": 0.3},
    ]


def shield_options(settings: Settings) -> Settings:
    """What a shield is told: nothing, unless something was chosen."""
    chosen = {key: settings[key] for key in ("share", "pull") if key in settings}
    return {"aperture": Auto(**chosen)} if chosen else {}


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
