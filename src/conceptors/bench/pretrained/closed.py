"""A readout in closed form, behind a frozen encoder or one that learns under a shield."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors import RandomFeatures, Readout, Shield
from conceptors.bench.pretrained.lesson import train
from conceptors.bench.pretrained.methods import Method, Settings
from conceptors.bench.pretrained.model import Classifier
from conceptors.bench.pretrained.shielded import numbers_in, remember
from conceptors.bench.pretrained.stream import Stream


class Frozen(Method):
    """On all hidden layers, lifted; the scores of several lifts (`members`) are averaged."""

    name = "readout"
    about = "`Readout` behind the frozen encoder"
    defaults: ClassVar[Settings] = {"lift": 10_000, "members": 1}
    grid: ClassVar[list[Settings]] = [
        {"members": 3},
        {"lift": 20_000},
        {},
        {"lift": 20_000, "members": 3},
    ]

    def __init__(self, stream: Stream, settings: Settings, seed: int, device: str) -> None:
        super().__init__(stream, settings, seed, device)
        self.features = Features(self.model)
        ids = stream.parts["train"][0].ids[:2]
        with torch.no_grad():
            width = self.features(ids).shape[1]
        self.readouts = []
        for member in range(self.settings["members"]):
            lift = RandomFeatures(
                width, self.settings["lift"], "relu", shape=0.0, seed=seed + 1000 * member
            )
            self.readouts.append(Readout(width, lift=lift).to(device))

    def learn(self, domain: int) -> None:
        self.read(domain)

    def read(self, domain: int, shield: Shield | None = None) -> None:
        part = self.stream.parts["train"][domain]
        order = part.lengths.argsort(stable=True).split(256)
        batches = [part.rows(at) for at in order]
        for readout in self.readouts:
            readout.learn_from(self.features, batches, shield=shield)

    def scores(self, ids: Tensor) -> Tensor:
        features = self.features(ids)
        found = torch.stack([readout(features) for readout in self.readouts]).mean(0)
        missing = self.stream.classes - found.shape[1]
        return functional.pad(found, (0, missing), value=-torch.inf)

    def stored(self) -> int:
        return sum(numbers_in(readout.state_dict()) for readout in self.readouts)


class ShieldedBody(Frozen):
    """The encoder learns a domain under a shield, with a head; then the readout learns it."""

    name = "shield + readout"
    about = "`Readout` behind an encoder that learns under a shield"
    defaults: ClassVar[Settings] = {"rate": 3e-5, "lift": 10_000, "members": 1, "mix": 0.0}
    grid: ClassVar[list[Settings]] = [
        {"members": 3, "mix": 0.3},
        {"rate": 1e-4, "members": 3, "mix": 0.3},
        {"rate": 1e-5, "members": 3, "mix": 0.3},
        {"rate": 1e-5, "members": 3, "mix": 0.1},
        {"members": 3, "mix": 0.1},
        {"rate": 3e-6, "members": 3, "mix": 0.3},
    ]

    def __init__(self, stream: Stream, settings: Settings, seed: int, device: str) -> None:
        super().__init__(stream, settings, seed, device)
        self.shield = Shield(self.model, warn_at_quota=1.0)

    def learn(self, domain: int) -> None:
        part = self.stream.parts["train"][domain]
        train(self.model, part, domain, self.settings, prepare=self.shield.guard)
        remember(self.shield, part.batches(256), domain)
        self.read(domain, self.shield)

    def scores(self, ids: Tensor) -> Tensor:
        """Readout, plus `mix` times what each head says among its own domain's intents.

        A head's answers add up to 1 within its domain: they say which intent of a domain it is,
        and favour a domain only as far as its head is surer than others.
        """
        found = super().scores(ids)
        if not self.settings["mix"]:
            return found
        heads = self.model(ids)
        own = [heads[:, self.stream.outputs(k)].softmax(1) for k in range(self.stream.domains)]
        mix: float = self.settings["mix"]
        return found + mix * torch.cat(own, 1)

    def stored(self) -> int:
        return super().stored() + numbers_in(self.shield.state_dict())


class Features(nn.Module):
    """Token ids to means of all hidden layers, each of length 1 `[n, layers · d]`."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Any:
        return torch.cat([functional.normalize(mean, dim=1) for mean in self.model.means(ids)], 1)
