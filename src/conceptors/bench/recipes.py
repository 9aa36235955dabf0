"""How each network is trained: sizes, data, loss, optimizer, precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from conceptors import Shield
from conceptors.bench import data, models
from conceptors.bench.row import Size, aim, pick
from conceptors.shield.room import ShieldFullWarning

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


def classify(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
    """Cross-entropy of outputs `[..., classes]`, and nothing that comes back from further on."""
    return functional.cross_entropy(out.flatten(0, -2), y.flatten()), None


def adamw(model: nn.Module) -> Optimizer:
    """AdamW, the fastest that torch has there."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **_fused(next(model.parameters()).device))


@dataclass(frozen=True)
class Recipe:
    """One network and how a step of it is made."""

    name: str
    setting: str
    size: Size
    device: torch.device
    model: Callable[[], nn.Module]
    batch: Callable[[int], Batch]  # inputs and targets of a seed, a task a thousand, on the device
    optimizer: Callable[[nn.Module], Optimizer] = adamw
    rank: float | int | None = 0.1
    aperture: Any = 9.0
    hard: bool = False
    project: Literal["gradients", "inputs"] = "gradients"
    loss: Loss = classify  # of outputs and targets: what is differentiated, and its gradient
    autocast: bool = False
    remembered: int = 8  # batches of the first task
    steps: int = 20  # on the first task, before it is remembered
    target: float | None = None  # of a shielded step, against a plain one
    rows: int | None = None  # that a layer sees in a batch, where the floor may project these

    def __str__(self) -> str:
        return f"{self.name} {self.setting}"

    def build(self) -> nn.Module:
        """The model on its device, the same every time."""
        torch.manual_seed(0)
        return self.model().to(self.device).train()

    def learned(self) -> nn.Module:
        """The model after some plain steps on the first task."""
        model = self.build()
        Trainer(self, model, self.old()).run(self.steps)
        return model

    def shielded(
        self,
        model: nn.Module,
        tasks: Iterable[Iterable[Any]] | None = None,
        guarded: bool = False,
        **options: Any,
    ) -> Shield:
        """A shield that remembers tasks, by default the first one.

        `guarded`: an optimizer is guarded before, so that remembering makes ready for its steps.
        """
        own = {"rank": self.rank, "hard": self.hard, "project": self.project}
        shield = Shield(model, self.aperture, **{**own, **options})
        if guarded:
            shield.guard(self.optimizer(model))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShieldFullWarning)  # made-up data may fill small layers
            for batches in [self.old()] if tasks is None else tasks:
                shield.remember(batches, feed=self.feed)
        return shield

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


class Trainer:
    """Steps of one model over batches, again and again; a shield lives as long as its trainer.

    `between` is called between backward pass and optimizer.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        batches: list[Batch],
        shield: Shield | None = None,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        self.recipe, self.model, self.shield, self.between = recipe, model, shield, between
        self.batches = cycle(batches)
        self.optimizer = recipe.optimizer(model)
        if shield is not None:
            shield.guard(self.optimizer)

    def step(self) -> None:
        x, y = next(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        x.grad = None
        with self.recipe.precision():
            loss, gradient = self.recipe.loss(self.model(x), y)
        loss.backward(gradient)
        self.between()
        self.optimizer.step()

    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()


# --- the networks -------------------------------------------------------------------------


def mlp(size: Size, device: torch.device, count: int, target: float, hard: bool) -> Recipe:
    """The paper's 784-800-10 on digits 5 to 9 after 0 to 4, plain SGD with inputs projected."""
    where, x, y = data.digits(size)
    x, hot = x.to(device), functional.one_hot(y, 10).float().to(device)
    tasks = [(x[own], hot[own]) for own in (y.to(device) < 5, y.to(device) >= 5)]
    hidden = pick(size, 20, 800, 800)

    def batch(seed: int) -> Batch:
        images, wanted = tasks[seed >= 1000]
        draw = torch.Generator().manual_seed(seed)
        chosen = torch.randint(len(images), (count,), generator=draw).to(device)
        return images[chosen], wanted[chosen]

    def half_squares(out: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor | None]:
        return (out - wanted).square().sum(1).mean() / 2, None

    return Recipe(
        name=f"784-{hidden}-10",
        setting=f"batch {count}, SGD, inputs projected, aperture 9, {where}, "
        f"{torch.get_num_threads()} threads",
        size=size,
        device=device,
        model=partial(models.mlp, 784, hidden, 10, activation=nn.Sigmoid),
        batch=batch,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        rank=None,
        hard=hard,
        project="inputs",
        loss=half_squares,
        remembered=max(1, pick(size, 200, 6000, 30_000) // count),
        steps=pick(size, 5, 200, 500),
        target=aim(target, size, device, "cpu"),
        rows=count,
    )


def cnn(size: Size, device: torch.device) -> Recipe:
    """Two convolutions and two linear layers on 28 x 28 pixels, `Shield(model)` as it comes."""
    count = pick(size, 4, 64, 64)

    @cache
    def batch(seed: int) -> Batch:
        return data.pictures(count, 1, 28, seed // 1000, seed, device)

    return Recipe(
        name="small CNN",
        setting=f"28 x 28, batch {count}, AdamW, aperture auto",
        size=size,
        device=device,
        model=models.ConvNet,
        batch=batch,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
        rank=None,
        aperture="auto",
        remembered=pick(size, 2, 8, 16),
        steps=pick(size, 2, 50, 100),
        target=aim(1.35, size, device, "cpu"),
    )


def resnet18(size: Size, device: torch.device, whole: bool = False) -> Recipe:
    """ResNet-18 on 32x32 images, momentum SGD, channels last.

    `whole`: at full size also on the CPU of its true width, with batches of 16.
    """
    gpu = real_gpu(size, device)
    # 4 channels, channels last, crash in oneDNN's backward pass on some CPUs (torch 2.13)
    width = 64 if gpu else pick(size, 8, 16, 64 if whole else 32)
    count = 256 if gpu else pick(size, 4, 16, 16 if whole else 64)

    @cache
    def batch(seed: int) -> Batch:
        x, y = data.pictures(count, 3, 32, seed // 1000, seed, device)
        return x.to(memory_format=torch.channels_last), y

    return Recipe(
        name="ResNet-18",
        setting=f"width {width}, batch {count}, channels last, SGD momentum{_bf16(device)}",
        size=size,
        device=device,
        model=lambda: models.ResNet18(width).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        batch=batch,
        optimizer=lambda m: torch.optim.SGD(
            m.parameters(), lr=0.002, momentum=0.9, **_fused(device)
        ),
        autocast=device.type == "cuda",
        remembered=pick(size, 2, 4, 8),
        steps=pick(size, 3, 20, 40),
        target=aim(1.06, size, device),
    )


def gpt2(size: Size, device: torch.device) -> Recipe:
    """GPT-2 small on made-up text, AdamW."""
    gpu = real_gpu(size, device)
    sizes: dict[str, int] = {"vocabulary": 50257, "context": 1024, "width": 768, "depth": 12}
    if not gpu:
        sizes = pick(
            size,
            {"vocabulary": 50, "context": 8, "width": 16, "depth": 2, "heads": 2},
            {"vocabulary": 2048, "context": 64, "width": 128, "depth": 2, "heads": 4},
            {"vocabulary": 8192, "context": 128, "width": 256, "depth": 4, "heads": 4},
        )
    length = sizes["context"]
    count = 8 if gpu else pick(size, 2, 4, 4)

    @cache
    def batch(seed: int) -> Batch:
        text = data.tokens(count, length + 1, sizes["vocabulary"], seed // 1000, seed, device)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return Recipe(
        name="GPT-2",
        setting=f"{sizes['depth']} x {sizes['width']}, {count} x {length} tokens, "
        f"AdamW{_bf16(device)}",
        size=size,
        device=device,
        model=partial(models.GPT2, **sizes),
        batch=batch,
        autocast=device.type == "cuda",
        remembered=pick(size, 2, 4, 8),
        steps=pick(size, 2, 10, 20),
        target=aim(1.12, size, device),
    )


def vit(size: Size, device: torch.device) -> Recipe:
    """ViT-S/16 on 224x224 images, AdamW."""
    gpu = real_gpu(size, device)
    sizes: dict[str, int] = {"image": 224, "patch": 16, "width": 384, "depth": 12, "heads": 6}
    if not gpu:
        sizes = pick(
            size,
            {"image": 16, "patch": 8, "width": 16, "depth": 2, "heads": 2},
            {"image": 64, "patch": 16, "width": 128, "depth": 4, "heads": 2},
            {"image": 96, "patch": 16, "width": 192, "depth": 6, "heads": 3},
        )
    side = sizes["image"]
    count = 128 if gpu else pick(size, 2, 8, 16)

    @cache
    def batch(seed: int) -> Batch:
        return data.pictures(count, 3, side, seed // 1000, seed, device)

    return Recipe(
        name="ViT-S/16" if gpu else "ViT",
        setting=f"{sizes['depth']} x {sizes['width']}, {side} x {side}, batch {count}, "
        f"AdamW{_bf16(device)}",
        size=size,
        device=device,
        model=partial(models.ViT, **sizes),
        batch=batch,
        autocast=device.type == "cuda",
        remembered=pick(size, 2, 4, 8),
        steps=pick(size, 2, 10, 20),
        target=aim(1.08, size, device),
    )


def minilm(size: Size, device: torch.device) -> Recipe:
    """An encoder of MiniLM's size on made-up sentences, AdamW, `Shield(model)` as it comes."""
    sizes: dict[str, int] = {"vocabulary": 30522, "context": 32, "width": 384, "depth": 6}
    if not real_gpu(size, device):
        small = {"vocabulary": 50, "context": 8, "width": 16, "depth": 2, "heads": 2, "classes": 10}
        quick = {"vocabulary": 2048, "context": 32, "width": 128, "depth": 2, "heads": 4}
        sizes = pick(size, small, quick, sizes)
    length = sizes["context"]
    count = pick(size, 2, 32, 32)

    @cache
    def batch(seed: int) -> Batch:
        text = data.tokens(count, length, sizes["vocabulary"], seed // 1000, seed, device)
        draw = torch.Generator(device).manual_seed(seed)
        return text, torch.randint(10, (count,), generator=draw, device=device)

    return Recipe(
        name="MiniLM",
        setting=f"{sizes['depth']} x {sizes['width']}, {count} x {length} tokens, AdamW, "
        f"aperture auto",
        size=size,
        device=device,
        model=partial(models.Encoder, **sizes),
        batch=batch,
        rank=None,
        aperture="auto",
        remembered=pick(size, 2, 24, 47),
        steps=pick(size, 2, 10, 20),
        target=aim(1.15, size, device),
    )


def layer_8b(size: Size, device: torch.device, half: bool = False) -> Recipe:
    """The widest Linear layer of a language model of eight billion parameters, AdamW.

    4096 -> 14336 without bias, 16,384 tokens, 512 directions, with float32 weights under autocast
    or weights kept in bfloat16. It stands inside a network: gradients come from above and go on to
    the input.
    """
    gpu = real_gpu(size, device)
    out, d, rows, rank = (
        (14336, 4096, 16384, 512)
        if gpu
        else pick(size, (56, 16, 64, 2), (1792, 512, 512, 64), (3584, 1024, 1024, 128))
    )
    span = rank + rank // 6  # directions that the remembered rows have
    dtype = torch.bfloat16 if half else torch.float32

    def batch(seed: int) -> Batch:
        generator = torch.Generator(device).manual_seed(seed)
        basis = torch.Generator(device).manual_seed(10**6 + seed // 1000)

        def normal(n: int, m: int, source: torch.Generator = generator) -> Tensor:
            return torch.randn(n, m, generator=source, device=device)

        x = normal(rows, span) @ normal(span, d, basis) / span**0.5
        gradient = normal(rows, out) / rows
        return x.to(dtype).requires_grad_(), gradient.to(torch.bfloat16 if gpu else dtype)

    weights = "bfloat16 weights" if half else f"float32 weights{', bf16 autocast' if gpu else ''}"
    return Recipe(
        name="Linear",
        setting=f"{d} -> {out}, {rows} tokens, AdamW, {weights}",
        size=size,
        device=device,
        model=lambda: nn.Linear(d, out, bias=False, dtype=dtype),
        batch=batch,
        rank=rank,
        loss=lambda result, gradient: (result, gradient),
        autocast=gpu and not half,
        remembered=2,
        steps=pick(size, 2, 10, 20),
        target=aim(1.20, size, device),
    )


def real_gpu(size: Size, device: torch.device) -> bool:
    """Whether networks have their published sizes."""
    return device.type == "cuda" and size != "tiny"


def _fused(device: torch.device) -> dict[str, Any]:
    """The fastest plain optimizer torch has there."""
    return {"fused": True} if device.type == "cuda" else {}


def _bf16(device: torch.device) -> str:
    return ", bf16 autocast" if device.type == "cuda" else ""
