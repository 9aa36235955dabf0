"""The networks that are timed, written from their papers with plain torch layers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of these sizes, inputs and outputs included, with activations between them."""
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        parts += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*parts[:-1])


class Growing(nn.Module):
    """A head of two outputs, and more with every task."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
        self.head = nn.Linear(128, 2)

    def grow(self, count: int) -> None:
        old = self.head
        new = nn.Linear(old.in_features, old.out_features + count).to(old.weight.device)
        with torch.no_grad():
            new.weight[: old.out_features] = old.weight
            new.bias[: old.out_features] = old.bias
        self.head = new

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x))
        return found


class ConvNet(nn.Module):
    """Two convolutions and two linear layers, for 28 x 28 pixels."""

    def __init__(self, classes: int = 10, norm: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(16), nn.BatchNorm2d(32)] if norm else [nn.Identity(), nn.Identity()]
        )
        self.hidden, self.head = nn.Linear(32 * 49, 128), nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip((self.first, self.second), self.norms):
            x = functional.max_pool2d(torch.relu(norm(convolution(x))), 2)
        found: Tensor = self.head(torch.relu(self.hidden(x.flatten(1))))
        return found


# --- residual network --------------------------------------------------------------------


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016, figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for 32x32 images: a 3x3 stem without pooling, four stages of two blocks."""

    def __init__(self, width: int = 64, classes: int = 100) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(4):
            for block in range(2):
                stride = 2 if stage and not block else 1
                blocks.append(BasicBlock(channels, width << stage, stride))
                channels = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.relu(self.bn(self.stem(x))))
        found: Tensor = self.head(x.mean((2, 3)))
        return found


# --- transformers ------------------------------------------------------------------------


class Attention(nn.Module):
    """Self-attention with queries, keys and values from one Linear layer."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [n, t, 3, heads, width / heads]
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        found: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return found


class Layer(nn.Module):
    """A pre-LN Transformer layer: x + attention(LN x), then x + MLP(LN x)."""

    def __init__(self, width: int, heads: int, causal: bool, tanh: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU("tanh" if tanh else "none"),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


class GPT2(nn.Module):
    """GPT-2 (Radford et al. 2019): the defaults are the small one, 124 million parameters.

    Learned positions, pre-LN layers, and an output layer that shares the token embedding.
    """

    def __init__(
        self,
        vocabulary: int = 50257,
        context: int = 1024,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads, True, True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_small_normal)
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.2.weight")):  # added to the residual
                nn.init.normal_(weight, std=0.02 / (2 * depth) ** 0.5)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        found: Tensor = self.head(self.norm(self.layers(x)))
        return found


class Encoder(nn.Module):
    """Sentences to classes, of the size of MiniLM (Wang et al. 2020): tokens in, their mean out."""

    def __init__(
        self,
        vocabulary: int = 30522,
        context: int = 32,
        width: int = 384,
        depth: int = 6,
        heads: int = 12,
        classes: int = 150,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads, False, False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.apply(_small_normal)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layers(self.tokens(tokens) + self.positions(places))
        found: Tensor = self.head(self.norm(x).mean(1))
        return found


class ViT(nn.Module):
    """Vision Transformer (Dosovitskiy et al. 2021); the defaults are ViT-S/16 at 224x224.

    Class token and positions are `nn.Embedding`s, since the shield knows that layer.
    """

    def __init__(
        self,
        image: int = 224,
        patch: int = 16,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Embedding(1, width)
        self.positions = nn.Embedding((image // patch) ** 2 + 1, width)
        self.layers = nn.Sequential(*(Layer(width, heads, False, False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.apply(_small_normal)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT  # [n, patches, width]
        first = torch.zeros(len(x), 1, dtype=torch.long, device=x.device)
        x = torch.cat([self.token(first).to(x.dtype), x], 1)
        x = self.layers(x + self.positions(torch.arange(x.shape[1], device=x.device)))
        found: Tensor = self.head(self.norm(x[:, 0]))
        return found


def _small_normal(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
