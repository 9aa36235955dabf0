"""Data sets as tensors."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from conceptors.experiments.scenarios.data.files import fetch

VALIDATION = 5_000  # the first training images, as in the paper's own code
Samples = tuple[Tensor, Tensor]  # inputs [n, ...], images as bytes, and labels [n]


@dataclass(frozen=True)
class Data:
    """Training, validation and test samples of a data set."""

    parts: list[Samples]
    groups: tuple[str, ...] = ()  # names of groups of equally many consecutive classes
    is_cut: bool = False  # whether the validation samples are the first of a training set

    def first(self, count: int) -> "Data":
        """Use `count` samples for training and for test, and a tenth of them for validation.

        They are the first of each set. If these miss a class, or the validation samples are a
        separate set, `count` of each are used: the first of every class, then the second, ...
        """
        train, validation, test = self.parts
        pooled = count + count // 10
        x, y = (torch.cat([v, t[:pooled]])[:pooled] for v, t in zip(validation, train))
        held = min(len(validation[1]), pooled // 10)
        first = [(x[held:], y[held:]), (x[:held], y[:held]), (test[0][:count], test[1][:count])]
        classes = len(train[1].unique())
        if self.is_cut and all(len(labels.unique()) == classes for _, labels in first):
            return Data(first, self.groups)
        parts = []
        for x, y in self.parts:
            place_in_class = functional.one_hot(y).cumsum(0).gather(1, y[:, None])[:, 0]
            chosen = place_in_class.argsort(stable=True)[:count]
            parts.append((x[chosen], y[chosen]))
        return Data(parts, self.groups)


@lru_cache(maxsize=1)  # every seed of a run needs it
def load(name: str) -> Data:
    """Load a data set of images; download it if it is not on this machine."""
    contents = fetch(name)
    if name == "cifar100":
        (x, y), test = (_cifar(contents[file]) for file in ("train.bin", "test.bin"))
    else:
        (x, y), test = (
            (
                _idx(contents[f"{part}-images-idx3-ubyte"]).flatten(1),
                _idx(contents[f"{part}-labels-idx1-ubyte"]).long(),
            )
            for part in ("train", "t10k")
        )
    parts = [(x[VALIDATION:], y[VALIDATION:]), (x[:VALIDATION], y[:VALIDATION]), test]
    return Data(parts, is_cut=True)


def _idx(data: bytearray) -> Tensor:
    """An idx file: two zero bytes, the type (8: bytes), the number of dimensions, their sizes."""
    dims = data[3]
    if data[:3] != b"\0\0\x08" or not 1 <= dims <= 3:
        raise ValueError("this is not an idx file of bytes")
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * dims).reshape(shape)


def _cifar(data: bytearray) -> Samples:
    """Records of coarse label, fine label and 3 x 32 x 32 pixels."""
    records = torch.frombuffer(data, dtype=torch.uint8).reshape(-1, 3074)
    return records[:, 2:].reshape(-1, 3, 32, 32).contiguous(), records[:, 1].long()
