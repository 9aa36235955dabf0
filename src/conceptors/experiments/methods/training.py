"""Parts of a training step: the order of samples, their variations, gradients and weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class RunningMean:
    """mean ← keep · mean + (1 - keep) · w per step; at first the plain mean of all weights so far.

    Weights of neighbouring steps hardly differ, so they are added once in `every` steps, a fiftieth
    of the 1 / (1 - keep) steps that count.
    """

    def __init__(self, parameters: list[nn.Parameter], keep: float) -> None:
        self.every, self._count = max(1, round(0.02 / (1 - keep))), 0
        self._least_share = 1 - keep**self.every
        self._pairs = [(parameter.detach().clone(), parameter) for parameter in parameters]

    @torch.no_grad()
    def add(self) -> None:
        """Add the current weights."""
        self._count += 1
        for mean, parameter in self._pairs:
            mean.lerp_(parameter, max(1 / self._count, self._least_share))

    @torch.no_grad()
    def use(self) -> None:
        """Set the weights to their mean, if there is one."""
        for mean, parameter in self._pairs if self._count else ():
            parameter.copy_(mean)


def sample_order(size: int, count: int, task: int, seed: int) -> Tensor:
    """Places `[count]` of samples in the order of training, shuffled for every pass."""
    generator = torch.Generator().manual_seed(104_729 * (task + 1) + seed)
    passes = [torch.randperm(size, generator=generator) for _ in range(-(-count // size))]
    return torch.cat(passes)[:count].to(torch.int32)


def varied(x: Tensor, mirror: bool, shift: int) -> Tensor:
    """Mirror and shift images `[batch, c, h, w]` at random; pixels from outside are zero."""
    count, _, height, width = x.shape
    rows, columns = torch.randint(2 * shift + 1, (2, count), device=x.device)
    if mirror:
        is_mirrored = torch.rand(count, 1, 1, 1, device=x.device) < 0.5
        x = torch.where(is_mirrored, x.flip(-1), x)
    windows = functional.pad(x, [shift] * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(count, device=x.device), :, rows, columns]


def to_unit_length(model: nn.Module) -> None:
    """Scale each neuron's incoming gradient, bias included, to length 1.

    Gradients shorter than 1e-6 are multiplied by 1e6 only, as TensorFlow's l2_normalize does.
    Otherwise an output that is never wanted would be driven to exactly 0 and never learn again.
    """
    for layer in model.modules():
        parameters = [getattr(layer, name, None) for name in ("weight", "bias")]
        gradients = [p.grad for p in parameters if p is not None and p.grad is not None]
        if gradients and gradients[0].ndim > 1:
            squares = [g.reshape(len(g), -1).square().sum(1) for g in gradients]
            length = torch.stack(squares).sum(0).clamp_min(1e-12).sqrt()
            for gradient in gradients:
                gradient.div_(length.reshape(-1, *[1] * (gradient.ndim - 1)))
