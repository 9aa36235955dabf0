"""The diagonal of the Fisher information, from gradients of single samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.settings import Settings, setting

_NUMBERS = 2e8  # in the gradients of samples that are differentiated at once


@dataclass(frozen=True)
class FisherSettings(Settings):
    labels: str = setting("all", "labels of the Fisher: expected ones, or true", ("all", "true"))
    fisher_samples: int = setting(1000, "images per task for the Fisher, 0 for all")


def fisher(learner: Learner, number: int) -> Tensor:
    """E[(∂ log p(y|x) / ∂θ)²] `[parameters]`, over a task's training samples.

    With labels "all", y has the distribution of the model's own outputs, and the expectation is
    exact; "true" takes the given labels (the empirical Fisher). With sigmoid outputs each output is
    an independent Bernoulli variable.
    """
    model, s = learner.model, learner.settings
    if any(isinstance(m, nn.BatchNorm2d) and m.running_mean is None for m in model.modules()):
        raise ValueError(
            "the Fisher information needs gradients of single samples, but norms use statistics "
            "of the batch; set norms=first"
        )
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    totals = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def weighted(params: dict[str, Tensor], x: Tensor, errors: Tensor) -> Tensor:
        out: Tensor = functional_call(model, params, (x[None],))
        return (out[0] * errors).sum()

    gradients = vmap(grad(weighted), in_dims=(None, 0, 0))
    split = learner.scenario.tasks[number].train
    generator = torch.Generator().manual_seed(350_377 * (number + 1) + learner.scenario.seed)
    places = torch.randperm(len(split), generator=generator)[: s.fisher_samples or None]
    size = max(1, min(256, int(_NUMBERS / sum(p.numel() for p in parameters.values()))))
    model.eval()
    with torch.no_grad():
        for part in places.to(learner.device).split(size):
            x, y = split.take(part)
            out = learner.masked(model(x), number)
            for errors in output_errors(out, y, s.labels, s.loss == "softmax"):
                for name, gradient in gradients(parameters, x, errors).items():
                    totals[name] += gradient.square().sum(0)
    model.train()
    return nn.utils.parameters_to_vector(totals.values()) / len(places)


def output_errors(out: Tensor, y: Tensor, labels: str, softmax: bool) -> list[Tensor]:
    """Errors e `[n, classes]`: the Fisher is Σ_e E[(Σ_k e_k ∂o_k / ∂θ)²] with outputs o.

    For one label it is e = y - p, with y one-hot.
    """
    p = out.softmax(1) if softmax else out.sigmoid()
    if labels == "true":
        return [functional.one_hot(y, out.shape[1]).to(p) - p]
    eye = torch.eye(out.shape[1]).to(p)
    used = p.any(0).nonzero().flatten().tolist()  # outputs of other heads add nothing
    if softmax:
        return [p[:, k : k + 1].sqrt() * (eye[k] - p) for k in used]
    return [(p * (1 - p))[:, k : k + 1].sqrt() * eye[k] for k in used]
