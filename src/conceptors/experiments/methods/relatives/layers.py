"""Layers as matrices `[g, out, d]`, their gradients in the same form, and the rows that enter them.

g is the number of seeds in a stacked network, and 1 in one that is not (the groups of a grouped
convolution count like seeds). A bias is one more column: [W | b], whose rows are [x, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.experiments.methods.base import Learner
from conceptors.layers import Block, Call, Draws, Rule, Sample, SecondMoment, find_rule
from conceptors.shield.blocks import parameter_at


class DivergedError(ValueError):
    """Training ended with numbers that are none, for at least one member of a stack."""


@dataclass(frozen=True, eq=False)
class MatrixLayer:
    """One matrix of a model, and the layer that multiplies rows with it."""

    name: str
    layer: nn.Module
    rule: Rule
    block: Block

    @property
    def weight(self) -> nn.Parameter:
        found = parameter_at(self.layer, self.block.weight)
        if found is None:
            raise ValueError(f"{self.name} has no weight any more: do not remove it while training")
        return found

    @property
    def bias(self) -> nn.Parameter | None:
        return parameter_at(self.layer, self.block.bias)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Weight and bias, as far as there are both."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(g, out, d), the column of a bias included in d."""
        groups, out, *inner = self.block.view(self.weight.detach()).shape
        return groups, out, torch.Size(inner).numel() + (self.bias is not None)

    def matrix(self) -> Tensor:
        """[W | b] `[g, out, d]`; change it with `set_matrix`."""
        return self._joined([p.detach() for p in self.parameters])

    def set_matrix(self, value: Tensor) -> None:
        """Write [W | b] into the parameters, in place."""
        self._write([p.detach() for p in self.parameters], value)

    def live_matrix(self) -> Tensor:
        """[W | b] `[g, out, d]`, through which gradients reach the parameters."""
        return self._joined(self.parameters)

    def as_parameters(self, value: Tensor) -> list[Tensor]:
        """[W | b] `[g, out, d]` in the shapes of the parameters, gradients passing through."""
        made = [torch.empty_like(p, requires_grad=False) for p in self.parameters]
        self._write(made, value)
        return made

    def gradient(self) -> Tensor | None:
        """The gradient of [W | b] `[g, out, d]`, None if there is none; see `set_gradient`."""
        found = self._gradients()
        return None if found is None else self._joined(found)

    def set_gradient(self, value: Tensor) -> None:
        """Write the gradient of [W | b] into those of the parameters, in place."""
        found = self._gradients()
        if found is None:
            raise ValueError(f"{self.name} has no gradients to write to: call backward first")
        self._write(found, value)

    def rows(self, call: Call, sample: Sample) -> Iterator[Tensor]:
        """Rows `[g, n, d]` of one call of the layer, in parts, with the 1 of a bias."""
        for name, found in self.rule.rows(self.layer, call, sample):
            if name != self.block.name:
                continue
            if isinstance(found, SecondMoment):
                raise ValueError(f"{self.name} tells sums of its rows, and single rows are needed")
            x = found.values
            yield x if self.bias is None else torch.cat([x, torch.ones_like(x[..., :1])], -1)

    def _gradients(self) -> list[Tensor] | None:
        found = [p.grad for p in self.parameters if p.grad is not None]
        return found if len(found) == len(self.parameters) else None

    def _views(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Views `[g, out, ...]` of tensors shaped like the parameters."""
        return [
            self.block.view(tensors[0]),
            *(self.block.bias_view(b)[..., None] for b in tensors[1:]),
        ]

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        parts = [view.flatten(2) for view in self._views(tensors)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _write(self, tensors: Sequence[Tensor], value: Tensor) -> None:
        done = 0
        for view in self._views(tensors):
            width = view.shape[2:].numel()
            view.copy_(value[..., done : done + width].reshape(view.shape))
            done += width


def matrix_layers(model: nn.Module, *, head: bool = True) -> list[MatrixLayer]:
    """All matrices of a model in order; without the last one, its head, if `head` is False.

    Layers that scale each channel (BatchNorm and the like) have no matrix.

    Raises:
        ValueError: no layer of the model has a rule with a matrix.
    """
    found = []
    for path, layer in model.named_modules():
        rule = find_rule(layer)
        for block in [] if rule is None else rule.blocks(layer):
            weight = parameter_at(layer, block.weight)
            if rule is None or weight is None:
                continue
            if block.view(weight.detach()).shape[1:].numel() > 1:
                name = ".".join(part for part in (path, block.name) if part)
                found.append(MatrixLayer(name, layer, rule, block))
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no layer with a matrix that is known; register a rule for "
            f"its layers with conceptors.layers.register"
        )
    return found if head else found[:-1]


def other_parameters(model: nn.Module, layers: Iterable[MatrixLayer]) -> list[nn.Parameter]:
    """Parameters of a model that belong to none of these layers."""
    own = {id(p) for layer in layers for p in layer.parameters}
    return [p for p in model.parameters() if id(p) not in own]


@contextmanager
def watching(
    layers: Iterable[MatrixLayer], seen: Callable[[MatrixLayer, Call], None]
) -> Iterator[None]:
    """Inside, `seen` is told of every call of these layers."""

    def hook(own: MatrixLayer) -> Any:
        return lambda _, args, kwargs, out: seen(own, Call(args, kwargs, out))

    handles = [own.layer.register_forward_hook(hook(own), with_kwargs=True) for own in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def drawn_inputs(learner: Learner, number: int, count: int) -> Tensor:
    """Training inputs `[seeds, n, ...]` of a task, as `drawn_samples` gives them."""
    return drawn_samples(learner, number, count)[0]


def drawn_samples(learner: Learner, number: int, count: int) -> tuple[Tensor, Tensor]:
    """Training inputs `[seeds, n, ...]` and labels of a task, n at most `count` (0 for all).

    Each seed draws for itself, as many as every other.
    """
    split = learner.scenario.tasks[number].train
    n = min([*split.sizes(), *([count] if count else [])])
    places = []
    for size, seed in zip(split.sizes(), learner.seeds):
        generator = torch.Generator().manual_seed(86_028_121 * (number + 1) + seed)
        places.append(torch.randperm(size, generator=generator)[:n])
    return split.take(torch.stack(places).to(learner.device))


@torch.no_grad()
def rows(
    model: nn.Module,
    layers: Sequence[MatrixLayer],
    batches: Sequence[Tensor],
    most: int = 0,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Rows `[g, n, d]` that enter each layer, by its name, in evaluation mode.

    Args:
        batches: inputs of the model, `[seeds, batch, ...]` each.
        most: about so many rows of a layer at most, 0 for all; each batch gives an equal share,
            the same rows for all seeds.
        seed: of that choice.
    """
    share = -(-most // len(batches)) if most else None
    draws = Draws(seed)
    sample = Sample(lambda count, dim: share, draws)
    found: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}

    def seen(layer: MatrixLayer, call: Call) -> None:
        own = torch.cat(list(layer.rows(call, sample)), 1)  # a copy, also of a single part
        if share is not None and own.shape[1] > share:  # its rule does not sample
            own = own[:, draws.indices(own.shape[1], share, own.device)]
        found[layer.name].append(own)

    training = model.training
    model.eval()
    try:
        with watching(layers, seen):
            for batch in batches:
                model(batch)
                draws.renew()
    finally:
        model.train(training)
    if missing := [name for name, parts in found.items() if not parts]:
        raise ValueError(f"no rows came to {', '.join(missing)}: does the model call these layers?")
    joined = {name: torch.cat(parts, 1) for name, parts in found.items()}
    for name, values in joined.items():
        if not bool(values.isfinite().all()):
            raise DivergedError(
                f"NaN or infinite rows enter {name}: training diverged; lower the rate"
            )
    return joined
