"""The network that all methods train: an encoder, and a linear head for each domain."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from conceptors.experiments.scenarios.data.sentences import mean_state

Heads = Literal["own", "one"]


class Classifier(nn.Module):
    """Token ids `[n, t]` to scores: of one domain's intents, or of all `[n, classes]`.

    With heads "own", every domain has a linear layer; side by side they are one head of all
    intents. With "one", they are rows of a single layer.
    """

    def __init__(self, body: Any, first: list[int], heads: Heads = "own") -> None:
        super().__init__()
        self.body, self.first = body, first
        width = int(body.config.hidden_size)
        sizes = [b - a for a, b in pairwise(first)] if heads == "own" else [first[-1]]
        self.heads = nn.ModuleList([nn.Linear(width, size) for size in sizes])
        for parameter in self.heads.parameters():
            nn.init.zeros_(parameter)  # an intent that is not learned yet answers to nothing

    def forward(self, ids: Tensor, domain: int | None = None) -> Tensor:
        mean = self.means(ids, hidden=False)[-1]
        if domain is None:
            return torch.cat([head(mean) for head in self.heads], 1)
        if len(self.heads) > 1:
            found: Tensor = self.heads[domain](mean)
            return found
        scores: Tensor = self.heads[0](mean)
        return scores[:, self.first[domain] : self.first[domain + 1]]

    def head(self, domain: int | None) -> list[nn.Parameter]:
        """What is trained of the heads with a domain, or with all."""
        if domain is None or len(self.heads) == 1:
            return list(self.heads.parameters())
        return list(self.heads[domain].parameters())

    def means(self, ids: Tensor, hidden: bool = True) -> list[Tensor]:
        """Means over tokens `[n, d]` of the last layer, or of all hidden layers."""
        found = self.body(
            input_ids=ids, attention_mask=(ids != 0).long(), output_hidden_states=hidden
        )
        layers = found.hidden_states if hidden else (found.last_hidden_state,)
        return [mean_state(states, ids) for states in layers]
