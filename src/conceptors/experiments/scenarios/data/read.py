"""Data sets as tensors."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from conceptors.experiments.scenarios.data.files import fetch


class Arrays(NamedTuple):
    """Images `[n, ...]` as bytes, and their labels `[n]`."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def first(self, count: int) -> "Arrays":
        """`count` images of each set, and a tenth more for validation."""
        train, test = first_of(self.train_y, count + count // 10), first_of(self.test_y, count)
        return Arrays(*(x[train] for x in self[:2]), *(x[test] for x in self[2:]))


def first_of(labels: Tensor, count: int) -> slice | Tensor:
    """Places of the first `count` samples; if they miss a class, of the first of each class."""
    if len(labels[:count].unique()) == len(labels.unique()):
        return slice(count)
    of_class = functional.one_hot(labels.long()).cumsum(0)  # how many of each class so far
    return of_class.gather(1, labels.long()[:, None])[:, 0].argsort(stable=True)[:count].sort()[0]


@lru_cache(maxsize=1)  # every seed of a run needs it
def load(name: str) -> Arrays:
    """Load a data set of images; download it if it is not on this machine."""
    contents = fetch(name)
    if name == "cifar100":
        return Arrays(*_cifar(contents["train.bin"]), *_cifar(contents["test.bin"]))
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return Arrays(
        *(_idx(contents[f"{part}-{kind}"]) for part in ("train", "t10k") for kind in kinds)
    )


def _idx(data: bytearray) -> Tensor:
    """An idx file: two zero bytes, the type (8: bytes), the number of dimensions, their sizes."""
    dims = data[3]
    if data[:3] != b"\0\0\x08" or not 1 <= dims <= 3:
        raise ValueError("this is not an idx file of bytes")
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * dims).reshape(shape)


def _cifar(data: bytearray) -> tuple[Tensor, Tensor]:
    """Records of coarse label, fine label and 3 x 32 x 32 pixels."""
    records = torch.frombuffer(data, dtype=torch.uint8).reshape(-1, 3074)
    return records[:, 2:].reshape(-1, 3, 32, 32).contiguous(), records[:, 1].contiguous()
