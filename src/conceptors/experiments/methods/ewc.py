"""Elastic weight consolidation (Kirkpatrick et al. 2017)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.settings import Settings, setting
from conceptors.experiments.networks import AlexNet

_SAMPLES = 1000  # images per task for the Fisher information
_NUMBERS = 2e8  # in the gradients of samples that are differentiated at once


@dataclass(frozen=True)
class EwcSettings(Settings):
    strength: float = setting(15.0, "weight of the Fisher penalty")


class Ewc(Learner):
    """(strength / 2) Σ_k F_k (θ - θ_k)² is added to the loss, F_k the Fisher diagonal of task k.

    Up to a constant that is one quadratic form, with the sum F of all F_k, around the mean of all
    θ_k weighted by F_k.
    """

    name = "ewc"
    about = "elastic weight consolidation (Kirkpatrick et al. 2017)"
    settings_type = EwcSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.anchor = weights_of(self.model).detach()
        self.fisher = torch.zeros_like(self.anchor)

    def loss(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        squares = (weights_of(self.model) - self.anchor).square()
        penalty: Tensor = self.settings.strength / 2 * (self.fisher * squares).sum()
        return super().loss(outputs, y, number) + penalty

    def end_task(self, number: int) -> None:
        new = fisher(self, number, "expected")
        self.fisher = self.fisher + new
        share = new / self.fisher.clamp_min(torch.finfo(new.dtype).tiny)
        self.anchor = torch.lerp(self.anchor, weights_of(self.model).detach(), share)


def weights_of(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return nn.utils.parameters_to_vector(model.parameters())


def fisher(learner: Learner, number: int, labels: str) -> Tensor:
    """E[(∂ log p(y|x) / ∂θ)²] `[parameters]`, over a task's training samples.

    "expected" labels y follow the model's own outputs, exactly; "true" ones are the given labels.
    With sigmoid outputs each output is an independent Bernoulli variable.
    """
    model, is_softmax = learner.model, learner.settings.loss == "softmax"
    if isinstance(model, AlexNet):
        raise ValueError(
            f"{learner.name} cannot learn colour images: the Fisher information needs gradients of "
            f"single samples, but this network's norms use statistics of the batch"
        )
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    totals = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def weighted(params: dict[str, Tensor], x: Tensor, errors: Tensor) -> Tensor:
        out: Tensor = functional_call(model, params, (x[None],))
        return (out[0] * errors).sum()

    gradients = vmap(grad(weighted), in_dims=(None, 0, 0))
    split = learner.scenario.tasks[number].train
    places = split.drawn(_SAMPLES, 350_377 * (number + 1) + learner.scenario.seed)
    size = max(1, min(256, int(_NUMBERS / len(weights_of(model)))))
    model.eval()
    with torch.no_grad():
        for part in places.split(size):
            x, y = split.take(part)
            outputs = learner.masked(model(x), number)
            for errors in output_errors(outputs, y, labels, is_softmax):
                for name, gradient in gradients(parameters, x, errors).items():
                    totals[name] += gradient.square().sum(0)
    model.train()
    return nn.utils.parameters_to_vector(totals.values()) / len(places)


def output_errors(outputs: Tensor, y: Tensor, labels: str, is_softmax: bool) -> list[Tensor]:
    """Errors e `[n, classes]`: the Fisher is Σ_e E[(Σ_k e_k ∂o_k / ∂θ)²] with outputs o.

    For one label it is e = y - p, with y one-hot.
    """
    p = outputs.softmax(1) if is_softmax else outputs.sigmoid()
    if labels == "true":
        return [functional.one_hot(y, outputs.shape[1]).to(p) - p]
    eye = torch.eye(outputs.shape[1]).to(p)
    used = p.any(0).nonzero().flatten().tolist()  # outputs of other heads add nothing
    if is_softmax:
        return [p[:, k : k + 1].sqrt() * (eye[k] - p) for k in used]
    return [(p * (1 - p))[:, k : k + 1].sqrt() * eye[k] for k in used]
