"""layer-8b: the widest Linear layer of a language model of eight billion parameters."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from conceptors.bench.measure import release
from conceptors.bench.recipes import Batch, Recipe
from conceptors.bench.row import Row, Size, aim, pick
from conceptors.bench.steps import step_rows


def layer_8b(size: Size, device: torch.device) -> list[Row]:
    """4096 -> 14336 without bias, 16,384 tokens, AdamW, 512 directions.

    The layer stands inside a network: gradients come from above and go on to the input. Once
    with float32 weights under autocast, once with weights kept in bfloat16.
    """
    cuda = device.type == "cuda" and size != "tiny"
    out, d, rows, rank = (
        (14336, 4096, 16384, 512)
        if cuda
        else pick(size, (56, 16, 64, 2), (1792, 512, 512, 64), (3584, 1024, 1024, 128))
    )
    span = rank + rank // 6  # directions that the remembered rows have

    def batch(seed: int, dtype: torch.dtype = torch.float32) -> Batch:
        generator = torch.Generator(device).manual_seed(seed)
        basis = torch.Generator(device).manual_seed(10**6 + seed // 1000)

        def normal(n: int, m: int, source: torch.Generator = generator) -> Tensor:
            return torch.randn(n, m, generator=source, device=device)

        x = normal(rows, span) @ normal(span, d, basis) / span**0.5
        gradient = normal(rows, out) / rows
        return x.to(dtype).requires_grad_(), gradient.to(torch.bfloat16 if cuda else dtype)

    fused = {"fused": True} if device.type == "cuda" else {}
    recipe = Recipe(
        name="Linear",
        setting=f"{d} -> {out}, {rows} tokens, AdamW, float32 weights"
        f"{', bf16 autocast' if cuda else ''}",
        device=device,
        model=lambda: nn.Linear(d, out, bias=False),
        batch=batch,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-4, **fused),  # type: ignore[arg-type]
        rank=rank,
        loss=lambda result, gradient: (result, gradient),
        autocast=cuda,
        remembered=2,
        steps=pick(size, 2, 10, 20),
    )
    found = step_rows("layer-8b", recipe, size, aim(1.20, size, device))
    release(device)
    if cuda:
        half = replace(
            recipe,
            setting=f"{d} -> {out}, {rows} tokens, AdamW, bfloat16 weights",
            model=lambda: nn.Linear(d, out, bias=False, dtype=torch.bfloat16),
            batch=lambda seed: batch(seed, torch.bfloat16),
            autocast=False,
        )
        found += step_rows("layer-8b", half, size, aim(1.20, size, device))
    return found
