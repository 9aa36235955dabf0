"""A small network in the form that trainers know, two tasks for it, and what became of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from conceptors import Shield

DIM, CLASSES = 12, 3


class Net(nn.Module):
    """Linear, so that a task uses few directions; returns its loss where there are labels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(DIM, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.body(x))
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def task(number: int, count: int = 48) -> tuple[Tensor, Tensor]:
    """Samples `[count, DIM]` in four dimensions, which depend on the task, and labels."""
    generator = torch.Generator().manual_seed(number)
    inside = torch.randn(count, 4, generator=generator)
    basis = torch.randn(4, DIM, generator=generator) / 2
    return inside @ basis, inside[:, :CLASSES].argmax(1)


def rows(number: int, count: int = 48) -> list[dict[str, Tensor]]:
    """A task as data sets of transformers are: one mapping per sample."""
    return [{"x": x, "labels": label} for x, label in zip(*task(number, count))]


def outputs(model: nn.Module, number: int) -> Tensor:
    with torch.no_grad():
        return model(task(number)[0].to(next(model.parameters()))).float()  # type: ignore[no-any-return]


def accuracy(model: nn.Module, number: int) -> float:
    return float((outputs(model, number).argmax(1) == task(number)[1]).float().mean())


def everything(model: nn.Module, shield: Shield) -> dict[str, Tensor]:
    """All weights, and all that is remembered, by name."""
    weights = {f"weight {name}": p.detach().clone() for name, p in model.named_parameters()}
    return weights | {f"conceptor {name}": c.matrix() for name, c in shield.conceptors().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """To the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
