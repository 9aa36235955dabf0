"""A Transformer encoder on two tasks: AdamW, weight decay, clipping, a learning-rate schedule.

The tasks are digits upright, then turned by 90 degrees, with the same ten outputs and no task ID.
AdamW rescales gradients element by element and decays weights, so the shield projects both its
gradients and its steps.
Run with: python examples/transformer_adamw.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from conceptors import Shield

EPOCHS = 10
torch.set_num_threads(1)  # fastest for such a small network

X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
X = X.float().reshape(-1, 8, 8) / 16  # [1797, 8, 8]
test = torch.arange(len(X)) % 4 == 0  # every fourth image is held out
TASKS = {"upright": X, "turned": X.rot90(1, (1, 2))}


class Encoder(nn.Module):
    """The eight rows of an image are its tokens."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Embedding(8, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=128, batch_first=True, norm_first=True, dropout=0.0
        )
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x) + self.position(torch.arange(8))  # [n, 8, width]
        scores: Tensor = self.head(self.layers(tokens).flatten(1))  # [n, 10]
        return scores


def learn(protect: bool) -> tuple[Encoder, float]:
    """Learn both tasks; return the network and the accuracy on the first right after it."""
    torch.manual_seed(0)
    model = Encoder()
    if protect:
        shield = Shield(model)
    first = 0.0

    for images in TASKS.values():
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), lr=3e-3, weight_decay=0.01
        )
        if protect:
            optimizer = shield.guard(optimizer)
        schedule = CosineAnnealingLR(optimizer, EPOCHS)
        x, target = images[~test], y[~test]
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), target[batch]).backward()
                if protect:
                    shield.project_(optimizer)  # before gradients are clipped
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            schedule.step()
        if protect:
            shield.remember(x)
        first = first or accuracy(model, images)  # only after the first task
    return model, first


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor) -> float:
    return 100 * float((model(images[test]).argmax(1) == y[test]).float().mean())


print("Test accuracy in %   upright, after task 1   upright, at the end   turned")
for name, protect in (("without a shield", False), ("with a shield", True)):
    model, first = learn(protect)
    upright, turned = (accuracy(model, images) for images in TASKS.values())
    print(f"{name:20s} {first:22.1f} {upright:21.1f} {turned:8.1f}")
