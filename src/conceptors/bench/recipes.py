"""How each of the larger networks is trained: sizes, data, loss, optimizer, precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from conceptors.bench import data, models
from conceptors.bench.row import Size, pick
from conceptors.bench.untuned.catalogue import ConvNet

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


def classify(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
    """Cross-entropy of outputs `[..., classes]`, and nothing that comes back from further on."""
    return functional.cross_entropy(out.flatten(0, -2), y.flatten()), None


@dataclass(frozen=True)
class Recipe:
    """One network and how a step of it is made."""

    name: str
    setting: str
    device: torch.device
    model: Callable[[], nn.Module]
    batch: Callable[[int], Batch]  # inputs and targets of a seed, a task a thousand, on the device
    optimizer: Callable[[nn.Module], Optimizer]
    rank: float | int | None = 0.1
    aperture: Any = 9.0
    hard: bool = False
    project: Literal["gradients", "inputs"] = "gradients"
    loss: Loss = classify  # of outputs and targets: what is differentiated, and its gradient
    autocast: bool = False
    remembered: int = 8  # batches of the first task
    steps: int = 20  # on the first task, before it is remembered

    def build(self) -> nn.Module:
        """The model on its device, the same every time."""
        torch.manual_seed(0)
        return self.model().to(self.device).train()

    def precision(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.autocast else nullcontext()

    def feed(self, model: nn.Module, batch: Any) -> Tensor:
        """Run the model on a batch as in training."""
        with self.precision():
            found: Tensor = model(batch[0])
        return found

    def old(self) -> list[Batch]:
        """Batches of the first task."""
        return [self.batch(seed) for seed in range(self.remembered)]

    def new(self) -> list[Batch]:
        """Batches of the second task."""
        return [self.batch(1000 + seed) for seed in range(4)]


@dataclass
class Trainer:
    """Steps of one model over batches, again and again."""

    recipe: Recipe
    model: nn.Module
    optimizer: Optimizer
    batches: Iterator[Batch]
    between: Callable[[], object] | None = None  # backward pass and optimizer

    @staticmethod
    def of(recipe: Recipe, model: nn.Module, optimizer: Optimizer, batches: list[Batch]) -> Trainer:
        return Trainer(recipe, model, optimizer, cycle(batches))

    def step(self) -> None:
        x, y = next(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        x.grad = None
        with self.recipe.precision():
            loss, gradient = self.recipe.loss(self.model(x), y)
        loss.backward(gradient)
        if self.between is not None:
            self.between()
        self.optimizer.step()


def resnet18(size: Size, device: torch.device, whole: bool = False) -> Recipe:
    """ResNet-18 on 32x32 images, momentum SGD, channels last.

    `whole`: at full size also on the CPU of its true width, with batches of 16.
    """
    cuda = device.type == "cuda" and size != "tiny"
    # 4 channels, channels last, crash in oneDNN's backward pass on some CPUs (torch 2.13)
    width = 64 if cuda else pick(size, 8, 16, 64 if whole else 32)
    count = 256 if cuda else pick(size, 4, 16, 16 if whole else 64)

    @cache
    def batch(seed: int) -> Batch:
        x, y = data.pictures(count, 3, 32, seed // 1000, seed, device)
        return x.to(memory_format=torch.channels_last), y

    return Recipe(
        name="ResNet-18",
        setting=f"width {width}, batch {count}, channels last, SGD momentum{_bf16(device)}",
        device=device,
        model=lambda: models.ResNet18(width).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        batch=batch,
        optimizer=lambda m: torch.optim.SGD(
            m.parameters(), lr=0.002, momentum=0.9, **_fused(device)
        ),
        autocast=device.type == "cuda",
        remembered=pick(size, 2, 4, 8),
        steps=pick(size, 3, 20, 40),
    )


def cnn(size: Size, device: torch.device) -> Recipe:
    """Two convolutions and two linear layers on 28 x 28 pixels, AdamW, an automatic aperture."""
    count = pick(size, 4, 64, 64)

    @cache
    def batch(seed: int) -> Batch:
        return data.pictures(count, 1, 28, seed // 1000, seed, device)

    return Recipe(
        name="small CNN",
        setting=f"28 x 28, batch {count}, AdamW, aperture auto",
        device=device,
        model=ConvNet,
        batch=batch,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
        rank=None,
        aperture="auto",
        remembered=pick(size, 2, 8, 16),
        steps=pick(size, 2, 50, 100),
    )


def gpt2(size: Size, device: torch.device) -> Recipe:
    """GPT-2 small on made-up text, AdamW."""
    cuda = device.type == "cuda" and size != "tiny"
    sizes: dict[str, int] = pick(
        "full" if cuda else size,
        {"vocabulary": 50, "context": 8, "width": 16, "depth": 2, "heads": 2},
        {"vocabulary": 2048, "context": 64, "width": 128, "depth": 2, "heads": 4},
        {} if cuda else {"vocabulary": 8192, "context": 128, "width": 256, "depth": 4, "heads": 4},
    )
    vocabulary, length = sizes.get("vocabulary", 50257), sizes.get("context", 1024)
    count = 8 if cuda else pick(size, 2, 4, 4)

    @cache
    def batch(seed: int) -> Batch:
        text = data.tokens(count, length + 1, vocabulary, seed // 1000, seed, device)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return Recipe(
        name="GPT-2",
        setting=f"{sizes.get('depth', 12)} x {sizes.get('width', 768)}, {count} x {length} tokens, "
        f"AdamW{_bf16(device)}",
        device=device,
        model=lambda: models.GPT2(**sizes),
        batch=batch,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-4, **_fused(device)),
        autocast=device.type == "cuda",
        remembered=pick(size, 2, 4, 8),
        steps=pick(size, 2, 10, 20),
    )


def minilm(size: Size, device: torch.device) -> Recipe:
    """An encoder of MiniLM's size on made-up sentences, AdamW, `Shield(model)` as it comes."""
    sizes: dict[str, int] = pick(
        "full" if device.type == "cuda" and size != "tiny" else size,
        {"vocabulary": 50, "context": 8, "width": 16, "depth": 2, "heads": 2, "classes": 10},
        {"vocabulary": 2048, "width": 128, "depth": 2, "heads": 4},
        {},
    )
    length = sizes.get("context", 32)
    count = pick(size, 2, 32, 32)

    @cache
    def batch(seed: int) -> Batch:
        vocabulary = sizes.get("vocabulary", 30522)
        text = data.tokens(count, length, vocabulary, seed // 1000, seed, device)
        draw = torch.Generator(device).manual_seed(seed)
        return text, torch.randint(10, (count,), generator=draw, device=device)

    return Recipe(
        name="MiniLM",
        setting=f"{sizes.get('depth', 6)} x {sizes.get('width', 384)}, {count} x {length} tokens, "
        f"AdamW, aperture auto",
        device=device,
        model=lambda: models.Encoder(**sizes),
        batch=batch,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-4, **_fused(device)),
        rank=None,
        aperture="auto",
        remembered=pick(size, 2, 24, 47),
        steps=pick(size, 2, 10, 20),
    )


def vit(size: Size, device: torch.device) -> Recipe:
    """ViT-S/16 on 224x224 images, AdamW."""
    cuda = device.type == "cuda" and size != "tiny"
    sizes: dict[str, int] = pick(
        "full" if cuda else size,
        {"image": 16, "patch": 8, "width": 16, "depth": 2, "heads": 2},
        {"image": 64, "patch": 16, "width": 128, "depth": 4, "heads": 2},
        {} if cuda else {"image": 96, "patch": 16, "width": 192, "depth": 6, "heads": 3},
    )
    side = sizes.get("image", 224)
    count = 128 if cuda else pick(size, 2, 8, 16)

    @cache
    def batch(seed: int) -> Batch:
        return data.pictures(count, 3, side, seed // 1000, seed, device)

    return Recipe(
        name="ViT-S/16" if not sizes else "ViT",
        setting=f"{sizes.get('depth', 12)} x {sizes.get('width', 384)}, {side} x {side}, batch "
        f"{count}, AdamW{_bf16(device)}",
        device=device,
        model=lambda: models.ViT(**sizes),
        batch=batch,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-4, **_fused(device)),
        autocast=device.type == "cuda",
        remembered=pick(size, 2, 4, 8),
        steps=pick(size, 2, 10, 20),
    )


def dense(recipe: Recipe) -> Recipe:
    """The same with all directions kept."""
    return replace(recipe, rank=None)


def _fused(device: torch.device) -> dict[str, Any]:
    """The fastest plain optimizer torch has there."""
    return {"fused": True} if device.type == "cuda" else {}


def _bf16(device: torch.device) -> str:
    return ", bf16 autocast" if device.type == "cuda" else ""
