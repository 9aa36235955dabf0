"""Layers as matrices `[W | b]`, and training with projected gradients of these."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.experiments.methods.base import Learner


class MatrixLayer:
    """A linear layer or a convolution without padding as the matrix `[W | b]` of shape `[out, d]`.

    A bias is one more column, and its row entry is 1. The rows of a convolution are its patches.
    """

    def __init__(self, name: str, module: nn.Linear | nn.Conv2d) -> None:
        self.name, self.module, self.weight = name, module, module.weight
        self.parameters = dict(module.named_parameters(prefix=name))
        self.dim = self.weight[0].numel() + (module.bias is not None)

    def matrix(self) -> Tensor:
        """`[W | b]`; gradients reach the parameters through it."""
        return joined(self.parameters.values())

    def named(self, matrix: Tensor) -> dict[str, Tensor]:
        """A matrix like `[W | b]` in the shapes and by the names of the parameters."""
        weight = matrix[:, : self.weight[0].numel()].reshape(self.weight.shape)
        parts = [weight.contiguous(), *matrix[:, weight[0].numel() :].unbind(1)]
        return dict(zip(self.parameters, parts, strict=True))

    def rows(self, x: Tensor) -> Tensor:
        """Rows `[n, d]` that a layer's input x amounts to."""
        if isinstance(self.module, nn.Conv2d):
            x = functional.unfold(x, self.module.kernel_size, stride=self.module.stride)
            x = x.mT.flatten(0, 1)
        return x if self.module.bias is None else functional.pad(x, (0, 1), value=1.0)


class ProjectedLearner(Learner):
    """Training with projected gradients.

    With one head per task the last layer is not projected, as other tasks' outputs get no
    gradient. Parameters of normalisation layers stay as the first task left them.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        layers = matrix_layers(self.model)
        in_layers = {id(p) for layer in layers for p in layer.parameters.values()}
        self.fixed = [p for p in self.model.parameters() if id(p) not in in_layers]
        self.layers = layers[:-1] if self.scenario.heads else layers
        self.inputs: dict[str, Tensor] = {}  # that entered each layer last
        for layer in self.layers:
            layer.module.register_forward_pre_hook(partial(self._note, layer.name))

    def _note(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.inputs[name] = inputs[0].detach()

    def projected(self, gradient: Tensor, layer: MatrixLayer) -> Tensor:
        """The gradient `[out, d]` that a layer uses from the second task on."""
        raise NotImplementedError

    def gradients(self, number: int) -> None:
        super().gradients(number)
        if number:
            self.project(number)

    @torch.no_grad()
    def project(self, number: int) -> None:
        """Project the gradients of all layers; after the first task drop all others."""
        for layer in self.layers:
            gradient = joined([p.grad for p in layer.parameters.values() if p.grad is not None])
            for name, part in layer.named(self.projected(gradient, layer)).items():
                layer.parameters[name].grad = part
        for parameter in self.fixed if number else ():
            parameter.grad = None

    def drawn_samples(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of `samples` random training samples of a task, of all if 0."""
        split = self.scenario.tasks[number].train
        generator = torch.Generator().manual_seed(86_028_121 * (number + 1) + self.scenario.seed)
        places = torch.randperm(len(split), generator=generator)[: self.settings.samples or None]
        return split.take(places.to(self.device))

    @torch.no_grad()
    def drawn_rows(self, number: int) -> dict[str, Tensor]:
        """Rows `[n, d]` in float64 that those samples send into each layer, by its name."""
        x, _ = self.drawn_samples(number)
        self.model.eval()
        self.outputs(x, number)
        self.model.train()
        return {name: rows.double() for name, rows in self.last_rows().items()}

    def last_rows(self) -> dict[str, Tensor]:
        """Rows `[n, d]` that entered each layer last, by its name."""
        return {layer.name: layer.rows(self.inputs[layer.name]) for layer in self.layers}


def matrix_layers(model: nn.Module) -> list[MatrixLayer]:
    """All linear layers and convolutions of a model, in order."""
    return [
        MatrixLayer(name, module)
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
    ]


def joined(tensors: Any) -> Tensor:
    """Tensors shaped like weight and bias as one matrix."""
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], 1)
