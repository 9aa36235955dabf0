"""The diagonal of the Fisher information, from gradients of single samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.stacked import StackedBatchNorm

LABELS = ("all", "sample", "pred", "true")


def fisher(learner: Learner, number: int, samples: int, labels: str) -> list[Tensor]:
    """E[(∂ log p(y|x) / ∂θ)²] for every parameter, over a task's training samples.

    `labels` says where y comes from: "all" takes the expectation over the model's own outputs
    exactly, "sample" draws from them, "pred" takes the likeliest, "true" the given label (the
    empirical Fisher). With sigmoid outputs every output is a Bernoulli variable of its own; "all"
    then is exact by linearity over independent outputs (a sum over outputs of p (1 - p) g²), and
    the others set all outputs at once.
    """
    if labels not in LABELS:
        raise ValueError(f"labels must be one of {LABELS}, got {labels!r}")
    model = learner.model
    names = [name for name, _ in model.named_parameters()]
    values = tuple(p.detach() for p in model.parameters())
    softmax = learner.settings.loss == "softmax"

    def outputs(params: tuple[Tensor, ...], x: Tensor) -> Tensor:
        out: Tensor = functional_call(model, dict(zip(names, params)), (x.unsqueeze(1),))
        return learner.masked(out, number).squeeze(1)  # [seeds, classes]

    def log_likelihood(params: tuple[Tensor, ...], x: Tensor, target: Tensor) -> Tensor:
        out = outputs(params, x)
        if softmax:
            return (out.log_softmax(-1) * target).sum()
        return -torch.nn.functional.binary_cross_entropy_with_logits(out, target, reduction="sum")

    def one_output(params: tuple[Tensor, ...], x: Tensor, which: Tensor) -> Tensor:
        return (outputs(params, x) * which).sum()

    total = [torch.zeros_like(v) for v in values]
    count = 0
    training = model.training
    model.eval()
    with torch.no_grad(), _fixed_statistics(learner, number):
        for x, y, chance in _batches(learner, number, samples):
            out = learner.masked(model(x), number)  # [seeds, n, classes]
            count += x.shape[1]
            if labels == "all":
                for k in _shown(learner, number, out.shape[-1]):
                    _add_expected(total, values, x, out, k, softmax, log_likelihood, one_output)
                continue
            target = targets(out, y, labels, softmax, chance)
            squares = vmap(grad(log_likelihood), in_dims=(None, 1, 1))(values, x, target)
            for so_far, square in zip(total, squares):
                so_far.add_(square.square().sum(0))
    model.train(training)
    return [t / count for t in total]


def _shown(learner: Learner, number: int, outputs: int) -> list[int]:
    """Outputs that a task's head has, of any seed: others have no gradient."""
    classes = learner.scenario.tasks[number].classes
    if not learner.scenario.heads or classes is None:
        return list(range(outputs))
    found: list[int] = classes.any(0).nonzero().flatten().tolist()
    return found


@contextmanager
def _fixed_statistics(learner: Learner, number: int) -> Iterator[None]:
    """Norms that hold no statistics use those of some samples: one alone has none."""
    modules = learner.model.modules()
    norms = [m for m in modules if isinstance(m, StackedBatchNorm) and m.held is None]
    found: dict[torch.nn.Module, tuple[Tensor, Tensor]] = {}

    def note(norm: Any, inputs: tuple[Tensor, ...]) -> None:
        found[norm] = norm.statistics(inputs[0])

    if norms:
        hooks = [norm.register_forward_pre_hook(note) for norm in norms]
        split = learner.scenario.tasks[number].train
        places = torch.arange(min(256, *split.sizes()), device=learner.device)
        learner.model(split.take(places.expand(len(learner.seeds), -1))[0])
        for hook in hooks:
            hook.remove()
    try:
        for norm in norms:
            norm.held = found[norm]
        yield
    finally:
        for norm in norms:
            norm.held = None


def _add_expected(
    total: list[Tensor],
    values: tuple[Tensor, ...],
    x: Tensor,
    out: Tensor,
    k: int,
    softmax: bool,
    log_likelihood: object,
    one_output: object,
) -> None:
    """Add output k's share of the exact expectation over the model's own outputs."""
    one_hot = torch.zeros_like(out)
    one_hot[..., k] = 1
    if softmax:
        chance = out.softmax(-1)[..., k]
        function = log_likelihood
    else:
        p = out.sigmoid()[..., k]
        chance = p * (1 - p)
        function = one_output
    squares = vmap(grad(function), in_dims=(None, 1, 1))(values, x, one_hot)  # type: ignore[arg-type]
    for so_far, square in zip(total, squares):
        weight = chance.mT.reshape(*chance.mT.shape, *[1] * (square.ndim - 2))
        so_far.add_((square.square() * weight).sum(0))


def targets(out: Tensor, y: Tensor, labels: str, softmax: bool, chance: Tensor) -> Tensor:
    """Labels `[seeds, n, classes]` of zeros and ones; `chance` are random numbers in [0, 1[."""
    one_hot = torch.nn.functional.one_hot
    if labels == "true":
        return one_hot(y, out.shape[-1]).to(out)
    if softmax:
        if labels == "pred":
            return one_hot(out.argmax(-1), out.shape[-1]).to(out)
        below = out.softmax(-1).cumsum(-1) <= chance[..., :1]
        return one_hot(below.sum(-1).clamp_max(out.shape[-1] - 1), out.shape[-1]).to(out)
    likely = out.sigmoid()
    return (likely > (0.5 if labels == "pred" else chance)).to(out)


def _batches(
    learner: Learner, number: int, samples: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, labels, and random numbers in [0, 1[ for drawing other labels, by seed alone."""
    split = learner.scenario.tasks[number].train
    count = min([samples or min(split.sizes()), *split.sizes()])
    parameters = sum(p.numel() for p in learner.model.parameters())  # of all seeds
    size = max(1, min(256, int(2e8 / parameters)))
    drawn, chances = [], []
    for length, seed in zip(split.sizes(), learner.seeds):
        generator = torch.Generator().manual_seed(350_377 * (number + 1) + seed)
        drawn.append(torch.randperm(length, generator=generator)[:count])
        chances.append(torch.rand(count, learner.scenario.classes, generator=generator))
    parts = (torch.stack(held).to(learner.device).split(size, 1) for held in (drawn, chances))
    for places, chance in zip(*parts):
        yield *split.take(places), chance
