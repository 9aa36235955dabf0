"""Data to time with: images and texts made up with the statistics of real ones, and MNIST."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from conceptors.bench.row import Size
from conceptors.experiments.scenarios.data import DataUnavailableError, load

_CPU = torch.device("cpu")


def images(count: int, channels: int, side: int, seed: int, device: torch.device = _CPU) -> Tensor:
    """Noise whose power falls as in photographs, with 1 / frequency²: `[n, channels, side, side]`.

    >>> images(2, 3, 8, seed=0).shape
    torch.Size([2, 3, 8, 8])
    """
    generator = torch.Generator(device).manual_seed(seed)
    white = torch.randn(count, channels, side, side, generator=generator, device=device)
    noise = torch.fft.rfft2(white)
    rows = torch.fft.fftfreq(side, device=device)[:, None]
    columns = torch.fft.rfftfreq(side, device=device)[None]
    frequency = (rows.square() + columns.square()).sqrt().clamp_min(1 / side)
    smooth = torch.fft.irfft2(noise / frequency, s=(side, side))
    scaled: Tensor = smooth / smooth.std()
    return scaled


def pictures(
    count: int, channels: int, side: int, task: int, seed: int, device: torch.device = _CPU
) -> tuple[Tensor, Tensor]:
    """Images of a task, each one of its ten motifs with some of the others and noise; which one.

    >>> x, y = pictures(2, 3, 8, task=0, seed=0)
    >>> x.shape, y.shape
    (torch.Size([2, 3, 8, 8]), torch.Size([2]))
    """
    motifs = images(10, channels, side, 10_000 + task, device)
    generator = torch.Generator(device).manual_seed(seed)
    y = torch.randint(10, (count,), generator=generator, device=device)
    shares = 0.2 * torch.randn(count, 10, generator=generator, device=device)
    shares[torch.arange(count, device=device), y] += 1
    mixed = torch.einsum("nk,kchw->nchw", shares, motifs)
    return mixed + 0.05 * images(count, channels, side, seed, device), y


def tokens(
    count: int, length: int, vocabulary: int, task: int, seed: int, device: torch.device = _CPU
) -> Tensor:
    """Texts `[count, length]` of a task's own third of the words, as often as Zipf's law says.

    >>> tokens(2, 5, 100, task=0, seed=0).shape
    torch.Size([2, 5])
    """
    words = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(task))
    words = words[: max(1, vocabulary // 3)]
    generator = torch.Generator(device).manual_seed(seed)
    odds = 1 / torch.arange(1, len(words) + 1, device=device)
    drawn = torch.multinomial(odds, count * length, replacement=True, generator=generator)
    return words.to(device)[drawn].reshape(count, length)


@cache
def digits(size: Size) -> tuple[str, Tensor, Tensor]:
    """(where from, images `[n, 784]` in [0, 1], labels `[n]`): MNIST, or where it cannot be had
    (and at tiny size) made-up images: smooth spots in the middle, black at the rim.
    """
    if size != "tiny":
        try:
            found = load("mnist", progress=False)
        except DataUnavailableError:
            pass
        else:
            return "MNIST", found.train_x.flatten(1).float() / 255, found.train_y.long()
    count = 400 if size == "tiny" else 20_000
    y = torch.arange(count) % 10
    shape = images(10, 1, 28, seed=1)[y] + 0.7 * images(count, 1, 28, seed=2)
    rim = torch.linspace(-1, 1, 28).square()
    window = (1 - (rim[:, None] + rim)).clamp(0, 1)
    return "made-up digits", ((shape - 0.5) * window).clamp(0, 1).flatten(1), y
