"""Data sets as tensors."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from conceptors.experiments.scenarios.data.cache import read_checked
from conceptors.experiments.scenarios.data.catalogue import CATALOGUE
from conceptors.experiments.scenarios.data.fetch import fetch


class Arrays(NamedTuple):
    """Images `[n, ...]` as bytes, and labels `[n]`."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def first(self, count: int) -> Arrays:
        """So many images of each set, and a tenth more to train with: validation is taken of it."""
        train, test = first_of(self.train_y, count + count // 10), first_of(self.test_y, count)
        return Arrays(
            self.train_x[train], self.train_y[train], self.test_x[test], self.test_y[test]
        )


def first_of(labels: Tensor, count: int) -> slice | Tensor:
    """Places of the first so many samples; where a class would be missing, the first of each."""
    if len(labels[:count].unique()) == len(labels.unique()):
        return slice(count)
    rank = torch.zeros(len(labels), dtype=torch.long)  # of a sample within its class
    for label in labels.unique():
        own = labels == label
        rank[own] = torch.arange(int(own.sum()))
    return rank.argsort(stable=True)[:count].sort().values


def load(name: str, *, progress: bool = True) -> Arrays:
    """A data set by name, fetched first if it is not on this machine.

    Raises:
        ValueError: unknown name.
        DataUnavailableError: neither found nor fetched; says which file to put where.
    """
    paths = fetch(name, progress=progress)
    files = {
        file.name: (read_checked(paths[file.name], file), paths[file.name])
        for file in CATALOGUE[name].files
    }
    if name == "cifar100":
        train, test = _cifar(files["train.bin"][0]), _cifar(files["test.bin"][0])
        return Arrays(*train, *test)
    found = [_idx(*files[f"{split}-{kind}"]) for split in ("train", "t10k") for kind in _KINDS]
    return Arrays(*found)


_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def _idx(data: bytearray, path: Path) -> Tensor:
    """An idx file: two zero bytes, the type (8: bytes), the number of dimensions, their sizes."""
    dims = data[3]
    if data[:3] != b"\0\0\x08" or not 1 <= dims <= 3:
        raise ValueError(f"{path} is not an idx file of bytes")
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    values = torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * dims)
    return values.reshape(shape)


def _cifar(data: bytearray) -> tuple[Tensor, Tensor]:
    """Records of coarse label, fine label and 3 x 32 x 32 pixels."""
    records = torch.frombuffer(data, dtype=torch.uint8).reshape(-1, 3074)
    return records[:, 2:].reshape(-1, 3, 32, 32).contiguous(), records[:, 1].contiguous()
