"""What a method is, and those that need nothing special: plain training, EWC, joint training."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from conceptors.bench.pretrained.lesson import train
from conceptors.bench.pretrained.model import Classifier
from conceptors.bench.pretrained.stream import Stream, new_encoder

Settings = dict[str, Any]
COMMON: Settings = {"epochs": 5, "batch": 32, "head_rate": 3e-3}


class Method:
    """Plain training, domain after domain; the others change what they have to.

    `defaults` are used where nothing was chosen; `grid` is what `choice` tries, each entry
    replacing some of the defaults.
    """

    name: ClassVar[str] = "plain"
    about: ClassVar[str] = "fine-tuning, domain after domain"
    needs: ClassVar[str | None] = None  # a package
    at_once: ClassVar[bool] = False  # all domains are learned together
    defaults: ClassVar[Settings] = {"rate": 1e-4}
    grid: ClassVar[list[Settings]] = [{"rate": rate} for rate in (1e-5, 3e-5, 1e-4, 3e-6)]

    def __init__(self, stream: Stream, settings: Settings, seed: int, device: str) -> None:
        self.stream = stream
        self.settings: Settings = {**COMMON, **self.defaults, **settings}
        self.seed = seed
        heads = self.settings.get("heads", "own")
        self.model = Classifier(new_encoder(), stream.first, heads).to(device)

    @classmethod
    def with_settings(cls, common: Settings, own: Settings | None = None) -> Settings:
        """The defaults, with its own settings, and with those of `common` that it has."""
        known = {**COMMON, **cls.defaults}
        return {**cls.defaults, **(own or {})} | {k: v for k, v in common.items() if k in known}

    def learn(self, domain: int) -> None:
        train(self.model, self.stream.parts["train"][domain], domain, self.settings)

    def scores(self, ids: Tensor) -> Tensor:
        """Of all intents `[n, classes]`; called without gradients, in evaluation mode."""
        found: Tensor = self.model(ids)
        return found

    def stored(self) -> int:
        """Numbers that are kept from domain to domain, beside the network itself."""
        return 0


class Joint(Method):
    """All domains mixed: what the others would reach if nothing had to be remembered."""

    name = "joint"
    about = "fine-tuning on all domains at once (a bound)"
    at_once = True
    defaults: ClassVar[Settings] = {"rate": 1e-4}
    grid: ClassVar[list[Settings]] = [{"rate": rate} for rate in (3e-5, 1e-4, 3e-4)]

    def learn(self, domain: int) -> None:
        train(self.model, self.stream.mixed("train"), None, self.settings)


class Ewc(Method):
    """(strength / 2) Σ_k F_k (θ - θ_k)² on the encoder, F_k the Fisher diagonal of domain k.

    Gradients of single sentences, labels drawn from the network's own answer. Heads are left out:
    each domain has its own.
    """

    name = "ewc"
    about = "elastic weight consolidation"
    defaults: ClassVar[Settings] = {"rate": 1e-4, "strength": 1e3, "fisher_sentences": 150}
    grid: ClassVar[list[Settings]] = [
        {"rate": 1e-4, "strength": 1e3},
        {"rate": 1e-4, "strength": 1e4},
        {"rate": 3e-5, "strength": 1e3},
        {"rate": 1e-5, "strength": 1e3},
        {"rate": 1e-5, "strength": 1e4},
        {"rate": 3e-5, "strength": 1e4},
    ]

    def __init__(self, stream: Stream, settings: Settings, seed: int, device: str) -> None:
        super().__init__(stream, settings, seed, device)
        self.weights = list(self.model.body.parameters())
        self.fisher = [torch.zeros_like(p) for p in self.weights]  # ΣF
        self.pulls = [torch.zeros_like(p) for p in self.weights]  # ΣF θ_k

    def learn(self, domain: int) -> None:
        part = self.stream.parts["train"][domain]
        penalty = self._add_penalty if domain else None
        train(self.model, part, domain, self.settings, before_step=penalty)
        self._consolidate(domain)

    def _add_penalty(self) -> None:
        pairs = [
            (p.grad, p.detach(), f, s) for p, f, s in zip(self.weights, self.fisher, self.pulls)
        ]
        grads, weights, fisher, pulls = zip(*[pair for pair in pairs if pair[0] is not None])
        away = torch._foreach_mul(fisher, weights)
        torch._foreach_sub_(away, pulls)
        torch._foreach_add_(grads, away, alpha=self.settings["strength"])

    def _consolidate(self, domain: int) -> None:
        part = self.stream.parts["train"][domain]
        chosen = torch.randperm(len(part))[: self.settings["fisher_sentences"]]
        found = [torch.zeros_like(p) for p in self.weights]
        self.model.eval()
        for at in chosen.split(1):
            self.model.zero_grad()
            scores = self.model(part.rows(at)[0], domain)
            label = torch.multinomial(scores.detach().softmax(1), 1).flatten()
            functional.cross_entropy(scores, label).backward()
            for total, p in zip(found, self.weights):
                if p.grad is not None:
                    total.addcmul_(p.grad, p.grad, value=1 / len(chosen))
        self.model.zero_grad()
        for total, pull, new, p in zip(self.fisher, self.pulls, found, self.weights):
            total.add_(new)
            pull.addcmul_(new, p.detach())

    def stored(self) -> int:
        return sum(tensor.numel() for tensor in (*self.fisher, *self.pulls))
