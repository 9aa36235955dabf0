"""Peers from peft: LoRA, and OSF (orthogonal subspace fine-tuning)."""

from __future__ import annotations

from typing import ClassVar

from conceptors.bench.pretrained.lesson import train
from conceptors.bench.pretrained.methods import Method, Settings
from conceptors.bench.pretrained.stream import Stream

LINEAR = ["query", "key", "value", "dense"]  # every linear layer of BERT's kind


class Lora(Method):
    """One set of adapters, on all linear layers, that goes on learning from domain to domain."""

    name = "lora"
    about = "LoRA (peft), rank 8, the same adapters for all domains"
    needs = "peft"
    defaults: ClassVar[Settings] = {"rate": 3e-4, "rank": 8}
    grid: ClassVar[list[Settings]] = [{"rate": rate} for rate in (1e-4, 3e-4, 1e-3, 3e-5, 1e-5)]

    def __init__(self, stream: Stream, settings: Settings, seed: int, device: str) -> None:
        from peft import LoraConfig, get_peft_model

        super().__init__(stream, settings, seed, device)
        rank = self.settings["rank"]
        config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=LINEAR)
        self.model.body = get_peft_model(self.model.body, config)

    def stored(self) -> int:
        return sum(p.numel() for p in self.model.body.parameters() if p.requires_grad)


class Osf(Method):
    """Each domain trains what is left when the weights' leading singular directions are frozen.

    The training of a domain is merged into the weights before the next decomposition
    (`merge_and_unload`). Budget: domain k of n freezes the leading (k - 1)/n, as peft's
    documentation advises for a known number of tasks; at least one direction, as none is refused.
    """

    name = "osf"
    about = "OSF (peft), merged after each domain"
    needs = "peft"
    defaults: ClassVar[Settings] = {"rate": 3e-5, "budget": "growing"}
    grid: ClassVar[list[Settings]] = [
        {"rate": 1e-4, "budget": "growing"},
        {"rate": 3e-5, "budget": "growing"},
        {"rate": 1e-5, "budget": "growing"},
        {"rate": 3e-5, "budget": "half"},
        {"rate": 1e-5, "budget": "half"},
    ]

    def learn(self, domain: int) -> None:
        from peft import OSFConfig, get_peft_model

        config = OSFConfig(target_modules=LINEAR, effective_rank=self._frozen(domain))
        plain = self.model.body
        self.model.body = get_peft_model(plain, config)
        part = self.stream.parts["train"][domain]
        train(self.model, part, domain, self.settings)
        self.model.body = self.model.body.merge_and_unload()

    def _frozen(self, domain: int) -> float | int | None:
        """Share of each layer's singular directions, or 1 for a single direction."""
        if self.settings["budget"] == "half":
            return None  # peft's default
        return domain / self.stream.domains if domain else 1
