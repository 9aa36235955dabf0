"""Orthogonal weights modification (Zeng, Chen, Cui & Yu 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.relatives.layers import (
    MatrixLayer,
    matrix_layers,
    other_parameters,
    watching,
)
from conceptors.experiments.methods.settings import Settings, setting
from conceptors.experiments.stacked import StackedLinear
from conceptors.layers import Call, Draws, Sample


@dataclass(frozen=True)
class OwmSettings(Settings):
    alpha: str = setting(
        "1", "α: smaller protects more; of all layers, or each its own: 0.9,1,0.6", each=True
    )
    alpha_decay: str = setting(
        "0.1", "by how much α falls from start to end of a task; as alpha", each=True
    )
    clip: float = setting(10.0, "longest gradient, see clips; 0 for any length")
    clips: str = setting(
        "projected",
        "what clip is of: all layers' projected gradients together, or each layer's own, before "
        "they are projected",
        choices=("projected", "layers"),
    )
    update: str = setting(
        "step",
        "when gradients meet what P learned: at once, or from the next task on",
        choices=("step", "task"),
    )
    shrink: float = setting(0.0, "λ of a penalty λ ‖W‖ for each layer; its gradient is projected")

    def check(self) -> None:
        super().check()
        for name in ("alpha", "alpha_decay"):
            numbers(name, getattr(self, name))


def numbers(name: str, text: str) -> list[float]:
    """Numbers above 0 of a setting like 0.9,1,0.6."""
    try:
        found = [float(part) for part in str(text).split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < value < float("inf") for value in found):
        raise ValueError(f"{name} must be numbers above 0 like 1 or 0.9,1,0.6, got {text!r}")
    return found


class Owm(Learner):
    """Each layer's gradient is multiplied by P, which recursive least squares keeps up to date.

    P is I at first. At every step, of the first task too, with x the mean input of the batch:

        k = P x / (α + xᵀ P x),    P ← P - k (P x)ᵀ,    g ← g P.

    With one α that is P = α (α I + Σ x xᵀ)⁻¹. α falls within each
    task from `alpha` to `alpha` times `alpha_decay`. The new P is used at once, as in the paper's
    code; with update=task, gradients meet the P of the tasks before. As gradients of a layer are
    sums over rows, g P = Σ e (x P)ᵀ with e the error of each row: with few rows that is less work.

    x has a 1 for the bias, and in convolutions it is the mean over patches too; the paper's code
    goes through the places of an image one by one. With one head per task the last layer is left
    alone, as other tasks' outputs get no gradient; parameters that are not matrices (of
    normalisation, which the paper does not use) stay as the first task left them.
    """

    name: ClassVar[str] = "owm"
    about: ClassVar[str] = "orthogonal weights modification (Zeng et al. 2019)"
    settings_type: ClassVar[type[Settings]] = OwmSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.layers = matrix_layers(self.model, head=not self.scenario.heads)
        self.fixed = other_parameters(self.model, matrix_layers(self.model))
        self.projectors: dict[str, Tensor] = {}  # P [g, d, d]
        self.means: dict[str, Tensor] = {}  # x [g, d] of the last batch
        for layer in self.layers:
            groups, _, dim = layer.shape
            like = layer.weight.detach()
            eye = torch.eye(dim, dtype=like.dtype, device=like.device)
            self.projectors[layer.name] = eye.repeat(groups, 1, 1)
            self.means[layer.name] = like.new_zeros(groups, dim)
        self.used = self.projectors  # what gradients are multiplied with
        self.alphas, self.decays = (self._per_layer(name) for name in ("alpha", "alpha_decay"))
        # how much of the task is done: on the device, as steps may be replayed
        self.progress_made = torch.zeros((), device=self.device)
        self._errors: dict[str, tuple[Tensor, Tensor]] = {}  # e [g, n, out] and x [g, n, d]
        self._sample = Sample(lambda count, dim: None, Draws(0))  # all rows

    def _per_layer(self, name: str) -> list[Tensor]:
        """Numbers of a setting, those of each layer `[g, 1, 1]`."""
        given = getattr(self.settings, name)
        by_seed = []
        for text in given if isinstance(given, tuple) else [given] * len(self.seeds):
            found = numbers(name, text)
            if len(found) not in (1, len(self.layers)):
                raise ValueError(
                    f"{name} has {len(found)} numbers for {len(self.layers)} layers; give one for "
                    f"all, or one for each"
                )
            by_seed.append(found * len(self.layers) if len(found) == 1 else found)
        made = []
        for layer, values in zip(self.layers, zip(*by_seed)):
            each = layer.shape[0] // len(self.seeds)  # groups of one seed
            of_seeds = layer.weight.detach().new_tensor(values)
            made.append(of_seeds.repeat_interleave(each)[:, None, None])
        return made

    def start_task(self, number: int) -> None:
        self.progress_made.zero_()
        self._step = 1 / self.steps(number)
        if self.settings.update == "task":
            self.used = {name: P.clone() for name, P in self.projectors.items()}

    def learn(self, number: int) -> list[dict[str, Any]]:
        with watching(self.layers, self._note):
            return super().learn(number)

    @torch.no_grad()
    def _note(self, layer: MatrixLayer, call: Call) -> None:
        """The mean row; also, where rows are few, all of them and in time their errors."""
        if not self.model.training or not call.output.requires_grad:
            return
        mean = self.means[layer.name].zero_()
        parts = list(layer.rows(call, self._sample))
        count = sum(part.shape[1] for part in parts)
        for part in parts:
            mean += part.sum(1)
        mean /= count
        _, out, dim = layer.shape
        if isinstance(layer.layer, (StackedLinear, nn.Linear)) and count * (out + dim) < out * dim:
            x = torch.cat(parts, 1)

            def errors(e: Tensor) -> None:
                self._errors[layer.name] = e.reshape(len(x), count, out), x

            call.output.register_hook(errors)

    @torch.no_grad()
    def gradients(self, number: int) -> None:
        for layer, alpha, decay in zip(self.layers, self.alphas, self.decays):
            P = self.projectors[layer.name]
            self._update(P, self.means[layer.name], alpha * decay**self.progress_made)
            gradient = layer.gradient()
            if gradient is not None:
                scale = self._shortened([gradient]) if self.settings.clips == "layers" else None
                layer.set_gradient(self._projected(layer, gradient, scale))
        for parameter in self.fixed if number else ():
            if parameter.grad is not None:
                parameter.grad.zero_()
        self.progress_made += self._step
        if self.settings.clips == "projected":
            self._clip()

    def _projected(self, layer: MatrixLayer, gradient: Tensor, scale: Tensor | None) -> Tensor:
        """g P, scaled for each seed `[seeds]`, with that of the penalty."""
        P = self.used[layer.name]
        few = self._errors.pop(layer.name, None)
        projected = gradient @ P if few is None else few[0].mT @ (few[1] @ P)
        if scale is not None:
            projected *= scale.repeat_interleave(len(P) // len(scale))[:, None, None]
        if self.settings.shrink:
            W = layer.matrix()
            length = W.square().sum((1, 2), keepdim=True).sqrt()
            projected += self.settings.shrink * (W / length.clamp_min(1e-12)) @ P
        return projected

    def _update(self, P: Tensor, x: Tensor, alpha: Tensor) -> None:
        """Recursive least squares, in place; seeds that stand still keep their P."""
        Px = P @ x[..., None]  # [g, d, 1]
        # never negative in exact numbers; rounded it could meet -α
        xPx = (x[:, None] @ Px).clamp_min(0)
        groups = len(P) // len(self.pace)  # of one seed, side by side
        going = (self.pace > 0)[:, None].expand(-1, groups).reshape(-1, 1, 1).to(P)
        half = going * Px / (alpha + xPx).sqrt()  # times itself: P stays symmetric, to the last bit
        P.sub_(half @ half.mT)

    def _clip(self) -> None:
        """Gradients of each seed get at most so long, all parameters together."""
        found = [p.grad for p in self.model.parameters() if p.grad is not None]
        scale = self._shortened(found)
        if scale is None:
            return
        for gradient in found:
            gradient.mul_(scale.reshape(-1, *[1] * (gradient.ndim - 1)))

    def _shortened(self, gradients: list[Tensor]) -> Tensor | None:
        """What makes gradients of each seed at most so long together, `[seeds]`."""
        longest, seeds = self.settings.clip, len(self.seeds)
        if not longest or not gradients:
            return None
        square = torch.stack([g.reshape(seeds, -1).square().sum(1) for g in gradients]).sum(0)
        scale: Tensor = (longest / (square.sqrt() + 1e-6)).clamp_max(1)
        return scale

    def stored_numbers(self) -> list[int]:
        held = sum(P.numel() for P in self.projectors.values())
        return [held // len(self.seeds)] * len(self.seeds)
