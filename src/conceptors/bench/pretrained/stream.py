"""The sentences of each domain as token ids, and the encoder that reads them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from conceptors.experiments.scenarios.data.sentences import (
    PARTS,
    encoder,
    encoder_folder,
    sentences,
    token_ids,
)


class Size(NamedTuple):
    """How much of the data is used: the first domains, and so many sentences of each intent."""

    domains: int = 10
    sentences: int = 100


@dataclass(frozen=True)
class Part:
    """Token ids `[n, t]` and labels `[n]`; lengths `[n]` stay on the CPU, to cut batches by."""

    ids: Tensor
    labels: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and labels of some rows (indices on the CPU), no longer than the longest of them."""
        there = at.to(self.ids.device, non_blocking=True)
        return self.ids[there, : int(self.lengths[at].max())], self.labels[there]

    def batches(self, size: int) -> list[Tensor]:
        """Ids in batches of like length."""
        return [self.rows(at)[0] for at in self.lengths.argsort(stable=True).split(size)]


@dataclass(frozen=True)
class Stream:
    """`parts[name][k]`: sentences of domain k. Its labels are `first[k]` to `first[k + 1] - 1`."""

    parts: dict[str, list[Part]]
    first: list[int]

    @property
    def classes(self) -> int:
        return self.first[-1]

    @property
    def domains(self) -> int:
        return len(self.first) - 1

    def outputs(self, domain: int) -> slice:
        return slice(self.first[domain], self.first[domain + 1])

    def mixed(self, name: str) -> Part:
        """All domains as one."""
        parts = self.parts[name]
        return Part(
            torch.cat([part.ids for part in parts]),
            torch.cat([part.labels for part in parts]),
            torch.cat([part.lengths for part in parts]),
        )


@cache
def read(size: Size, device: str) -> Stream:
    """The stream, cut to size.

    Raises:
        DataUnavailableError: sentences or encoder are not here; says what to put where.
    """
    folder, data = encoder_folder(), sentences()  # what cannot be fetched first
    domains = [sorted(labels) for labels in list(data.domains.values())[: size.domains]]
    first = [0]
    for labels in domains:
        first.append(first[-1] + len(labels))
    if [label for labels in domains for label in labels] != list(range(first[-1])):
        raise ValueError("labels must be numbered domain by domain")
    parts: dict[str, list[Part]] = {}
    for name in PARTS:
        texts, labels = data.parts[name]
        ids, y = token_ids(texts, folder), torch.tensor(labels)
        parts[name] = []
        for own in domains:
            kept = [(y == label).nonzero().flatten()[: size.sentences] for label in own]
            at = torch.cat(kept)
            lengths = (ids[at] != 0).sum(1)
            parts[name].append(Part(ids[at].to(device), y[at].to(device), lengths))
    return Stream(parts, first)


@cache
def _pretrained() -> Any:
    return encoder(encoder_folder())


def new_encoder() -> Any:
    """The encoder as it was published; every call gives one of its own."""
    return copy.deepcopy(_pretrained())


def stored_in() -> str | None:
    """The precision of the encoder's file, as far as its configuration tells; it runs in float32.

    A copy in half precision is smaller to carry around, and another encoder to the third digit.
    """
    dtype = getattr(_pretrained().config, "dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")
