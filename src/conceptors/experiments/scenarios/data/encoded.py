"""Sentences as features of a frozen encoder: computed once, then kept in the cache."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal import storage
from conceptors._internal.batches import with_progress
from conceptors._internal.precision import exactly
from conceptors.experiments.scenarios.data.cache import cache_folder, writable
from conceptors.experiments.scenarios.data.read import first_of
from conceptors.experiments.scenarios.data.sentences import (
    PARTS,
    encoder,
    encoder_folder,
    mean_state,
    sentence_files,
    sentences,
    token_ids,
)

Encode = Callable[[list[str]], Tensor]  # texts to features [n, layers, d]
_VERSION = "1"  # of what is made of the hidden states
_BATCH = 256
Samples = tuple[Tensor, Tensor]  # features [n, layers, d] and labels [n]


class Encoded(NamedTuple):
    """A data set as features of an encoder, with validation samples of its own."""

    train: Samples
    held: Samples
    test: Samples
    groups: tuple[str, ...]  # names; each has as many classes, one after the other

    def first(self, count: int) -> Encoded:
        """So many samples of each set."""
        chosen = [first_of(y, count) for _, y in self[:3]]
        train, held, test = ((x[own], y[own]) for (x, y), own in zip(self[:3], chosen))
        return Encoded(train, held, test, self.groups)


def load_encoded(name: str = "clinc150", *, progress: bool = True) -> Encoded:
    """CLINC150 as features `[n, 7, 384]`, with its own validation sentences.

    Each row is the mean over tokens of one of MiniLM's hidden layers, scaled to length 1. They are
    computed on a GPU where there is one.

    Raises:
        DataUnavailableError: sentences or encoder are not here.
    """
    files, folder = sentence_files(), encoder_folder()
    weights = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".json"))

    def encode(texts: list[str]) -> Tensor:
        bar = progress and importlib.util.find_spec("tqdm") is not None
        return hidden_layers(encoder(folder), token_ids(texts, folder), progress=bar)

    return encoded(encode, _digest([*files, *weights]), name)


def encoded(encode: Encode, key: str, name: str = "clinc150") -> Encoded:
    """All sentences as features; those computed before with the same key come from the cache."""
    data = sentences()
    path = cache_folder() / name / f"features-{key[:16]}.safetensors"
    found = _cached(path, key)
    if found is None:
        found = {part: encode(data.parts[part][0]).cpu() for part in PARTS}
        writable(name)
        storage.write(found, {"format": "conceptors features", "key": key}, path)
    samples = []
    for part in PARTS:
        y = torch.tensor(data.parts[part][1])
        if len(found[part]) != len(y):
            raise ValueError(f"{path} has {len(found[part])} features of {len(y)} sentences")
        # The file goes intent by intent; part of it is to have all of them.
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        samples.append((found[part][order], y[order]))
    train, held, test = samples
    return Encoded(train, held, test, tuple(data.domains))


def _cached(path: Path, key: str) -> dict[str, Tensor] | None:
    """Features of that key, if they are there and whole."""
    try:
        tensors, header = storage.read(path, "features")
    except (OSError, ValueError):
        return None
    right = header.get("key") == key and set(tensors) == set(PARTS)
    return tensors if right else None


@exactly()
def hidden_layers(model: Any, ids: Tensor, *, progress: bool = False) -> Tensor:
    """Means of all hidden layers over tokens `[n, layers, d]`, each of length 1."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device).eval()
    found = []
    for part in with_progress(ids.split(_BATCH), progress, "encode"):
        here = part.to(device)
        out = model(
            input_ids=here, attention_mask=(here != 0).long(), output_hidden_states=True
        ).hidden_states
        means = torch.stack([mean_state(states, here) for states in out], 1)
        found.append(functional.normalize(means, dim=-1).cpu())
    return torch.cat(found)


def _digest(files: Sequence[Path]) -> str:
    """Of all that decides what the features are."""
    total = hashlib.sha256(_VERSION.encode())
    for file in files:
        with file.open("rb") as stream:
            total.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()
