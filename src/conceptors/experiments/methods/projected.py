"""What OWM, GPM, TRGP and CODE-CL share: layers as matrices, and projected gradients of these."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from conceptors.experiments.methods.base import Learner


class MatrixLayer:
    """A linear layer or a convolution without padding as the matrix `[W | b]` `[out, d]`.

    Rows are the layer's inputs, or the patches of a convolution, with a 1 for the bias.
    """

    def __init__(self, name: str, module: nn.Linear | nn.Conv2d) -> None:
        self.module, self.weight = module, module.weight
        self.parameters = dict(module.named_parameters(prefix=name))
        self.dim = self.weight[0].numel() + (module.bias is not None)
        self.last_input = torch.empty(0)
        module.register_forward_pre_hook(self._note_input)

    def _note_input(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.last_input = inputs[0].detach()

    def matrix(self) -> Tensor:
        """`[W | b]`; gradients reach the parameters through it."""
        return joined(self.parameters.values())

    def named(self, matrix: Tensor) -> dict[str, Tensor]:
        """Split a matrix like `[W | b]` into tensors with the parameters' shapes and names."""
        weight = matrix[:, : self.weight[0].numel()].reshape(self.weight.shape)
        parts = [weight.contiguous(), *matrix[:, weight[0].numel() :].unbind(1)]
        return dict(zip(self.parameters, parts, strict=True))

    def rows(self) -> Tensor:
        """Rows `[n, d]` of the layer's last input."""
        x = self.last_input
        if isinstance(self.module, nn.Conv2d):
            x = functional.unfold(x, self.module.kernel_size, stride=self.module.stride)
            x = x.mT.flatten(0, 1)
        return x if self.module.bias is None else functional.pad(x, (0, 1), value=1.0)


class ProjectedLearner(Learner):
    """Training with projected gradients.

    With one head per task the last layer is not projected, because other tasks' outputs get no
    gradient there. Parameters of normalisation layers stay as the first task left them.
    """

    projects_first_task = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        kinds = (nn.Linear, nn.Conv2d)
        modules = self.model.named_modules()
        layers = [
            MatrixLayer(name, module) for name, module in modules if isinstance(module, kinds)
        ]
        self.layers = layers[:-1] if self.scenario.heads else layers
        in_layers = {parameter for layer in layers for parameter in layer.parameters.values()}
        self.norm_parameters = [p for p in self.model.parameters() if p not in in_layers]

    def projected(self, gradient: Tensor, layer: MatrixLayer) -> Tensor:
        """The gradient `[out, d]` that a layer uses."""
        raise NotImplementedError

    @torch.no_grad()
    def gradients(self, number: int) -> None:
        for layer in self.layers if number or self.projects_first_task else ():
            gradient = joined(parameter.grad for parameter in layer.parameters.values())
            for name, part in layer.named(self.projected(gradient, layer)).items():
                layer.parameters[name].grad = part
        for parameter in self.norm_parameters if number else ():
            parameter.grad = None

    def drawn_samples(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of `samples` random training samples of a task, of all if 0."""
        split = self.scenario.tasks[number].train
        seed = 86_028_121 * (number + 1) + self.scenario.seed
        return split.take(split.drawn(self.settings.samples, seed))

    @torch.no_grad()
    def drawn_rows(self, number: int) -> dict[MatrixLayer, Tensor]:
        """Each layer's rows `[n, d]` for those samples, in float64."""
        self.model.eval()
        self.outputs(self.drawn_samples(number)[0], number)
        self.model.train()
        return {layer: layer.rows().double() for layer in self.layers}


class Remix(NamedTuple):  # adds (W U) D Uᵀ to a layer's matrix W
    layer: MatrixLayer
    basis: Tensor  # U [d, r]
    mix: nn.Parameter  # D [r, r], starts at 0


class RemixLearner(ProjectedLearner):
    """Each task uses W + Σ_k (W U_k) D_k U_kᵀ: it remixes W within a few chosen subspaces.

    Earlier tasks still use W, so testing a task requires its task ID.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.remixes: list[list[Remix]] = []  # of every task that was started

    def start_task(self, number: int) -> None:
        self.remixes.append([])

    def add_remix(self, layer: MatrixLayer, basis: Tensor) -> None:
        """Let the current task remix a layer within the span of a basis U `[d, r]`."""
        U = basis.to(layer.weight.detach())
        mix = nn.Parameter(U.new_zeros(U.shape[1], U.shape[1]))
        self.remixes[-1].append(Remix(layer, U, mix))

    def trained(self) -> list[nn.Parameter]:
        return [*super().trained(), *(remix.mix for remix in self.remixes[-1])]

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs(x, len(self.remixes) - 1)

    def outputs(self, x: Tensor, number: int) -> Tensor:
        remixes = self.remixes[number] if number < len(self.remixes) else []
        shared = {remix.layer: remix.layer.matrix() for remix in remixes}
        matrices, weights = dict(shared), dict[str, Tensor]()
        for layer, U, D in remixes:
            matrices[layer] = matrices[layer] + shared[layer] @ U @ D @ U.mT
        for layer, matrix in matrices.items():
            weights |= layer.named(matrix)
        out: Tensor = functional_call(self.model, weights, (x,))
        return out


def joined(tensors: Iterable[Any]) -> Tensor:
    """Tensors shaped like weight and bias as one matrix."""
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], 1)
