"""A block of weights as one optimizer steps it: gradients, weights, and their projection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from conceptors._internal.precision import full
from conceptors.shield.blocks import WeightBlock, is_sharded, shard_like
from conceptors.shield.projection import FreeSpace, make_projection

# rounding in TF32 (11 bits) or on a CPU in bfloat16 (8 bits) is small beside √(1 - s)
_SOFT = {"cuda": 1 - 2**-14, "cpu": 1 - 2**-10}
_LARGE = 2**23  # rounding does not speed up smaller products


class GuardedBlock:
    """A block, or those of its parameters that one optimizer steps.

    Attributes:
        gradients: the gradients that were read, by the ids of parameters.
        once: whether gradients or steps are multiplied by F, instead of both by F^½.
        corrects: whether steps are projected.
        rough: whether the factors of products may be rounded.
        crossed: whether another block shares some of its memory in another layout.
        origin: W_previous in the coordinates of the projection; None without a pull.
        drift: W - W_previous in coordinates, which follows the steps.
        scale: the factor `[]` of a gradient scaler, which the pull needs too.
        previous: the weights before a step, and after it; None before the first step. Weights in
            half precision are followed in float32, so that rounding does not add up.
    """

    def __init__(
        self,
        site: WeightBlock,
        parameters: list[nn.Parameter],
        free: FreeSpace,
        scale: Tensor,
        *,
        once: bool = False,
        corrects: bool = True,
        crossed: bool = False,
        anchors: list[Tensor] | None = None,
    ) -> None:
        self.name, self.site, self.parameters = site.name, site, parameters
        self.once, self.corrects, self.crossed = once, corrects, crossed
        self.device = parameters[0].device
        self.is_sharded = any(is_sharded(p.data) for p in parameters)
        # rounding steps changes less than a soft conceptor lets through, or a pull corrects it
        is_soft = free.stiffness is not None or float(free.values.max()) < _SOFT.get(
            self.device.type, 0.0
        )
        size = sum(p.numel() for p in parameters) * free.rank
        self.rough = corrects and is_soft and size > _LARGE
        self.projection = make_projection(
            free, once, dense=not (corrects or self.is_sharded), dtype=parameters[0].dtype
        )
        self.scale = scale
        self.origin: Tensor | None = None
        if self.projection.pulls and anchors is not None:
            before = {id(p): site.plain(a) for p, a in zip(parameters, anchors)}
            self.origin = self.projection.coordinates(site.views(before, parameters)).clone()
        self.drift: Tensor | None = None
        self.previous: list[Tensor] | None = None
        self._weights: dict[int, Tensor] = {}
        self.gradients: dict[int, Tensor] = {}

    @property
    def about(self) -> str:
        """A description for `Shield.explain`."""
        return "gradients projected" if self.once else "gradients and steps projected"

    # --- gradients ------------------------------------------------------------------------

    def project_current_gradients(self) -> None:
        """Project `.grad` of all parameters in place."""
        if self.load_gradients():
            self.project_gradients()
            self.store_gradients()
            self.gradients = {}

    def load_gradients(self) -> bool:
        """Read the gradients, as zeros where there are none; return whether there are any."""
        if not self.has_gradients():
            return False
        self.gradients = {id(p): self._gradient(p) for p in self.parameters}
        return True

    def has_gradients(self) -> bool:
        """Whether there is any gradient. Where gradients alone are projected, fill in the others.

        A step that is not projected is in the free space only as a whole.
        """
        missing = [p for p in self.parameters if p.grad is None]
        if len(missing) == len(self.parameters):
            return False
        for parameter in missing if self.once else ():
            parameter.grad = torch.zeros_like(parameter)
        return True

    def _gradient(self, parameter: nn.Parameter) -> Tensor:
        """Return a gradient as a plain tensor of the shape of `WeightBlock.read`."""
        gradient: Any = parameter.grad
        if gradient is None:
            return torch.zeros_like(self.site.read(parameter))
        if gradient.layout == torch.sparse_coo:
            return gradient.to_dense()  # type: ignore[no-any-return]
        return self.site.plain(gradient)

    def project_gradients(self) -> None:
        """Project the gradients that were read, and add the pull."""
        if not self.corrects or self.crossed:
            self.measure_drift()  # it does not follow the steps
        self.projection.apply_(self.gradient_parts(), drift=self.scaled_drift())

    def store_gradients(self) -> None:
        """Write gradients back that were read as copies."""
        for parameter in self.parameters:
            gradient: Any = parameter.grad
            if gradient is None:
                continue
            value = self.gradients[id(parameter)]
            if gradient.layout == torch.sparse_coo:
                places = gradient.coalesce().indices()
                parameter.grad = torch.sparse_coo_tensor(
                    places, value[places[0]], value.shape, check_invariants=False
                )
            elif self.is_sharded and not self.site.block.rows_first:
                gradient.copy_(shard_like(value, gradient))

    def gradient_parts(self) -> list[Tensor]:
        """Return the gradients as views `[g, out, ...]`."""
        return self.site.views(self.gradients, self.parameters)

    def measure_drift(self) -> None:
        """Compute W - W_previous in coordinates."""
        if self.origin is not None:
            now = self.projection.coordinates(self.load_weights()) - self.origin
            self.drift = now if self.drift is None else self.drift.copy_(now)

    def scaled_drift(self) -> Tensor | None:
        """Return the drift times the scale of the gradients."""
        return None if self.drift is None else self.drift * self.scale

    # --- weights --------------------------------------------------------------------------

    def load_weights(self) -> list[Tensor]:
        """Return the weights as views `[g, out, ...]`, of copies where they are gathered."""
        self._weights = {id(p): self.site.read(p) for p in self.parameters}
        return self.site.views(self._weights, self.parameters)

    def store_weights(self) -> None:
        """Write weights back that were read as copies."""
        for parameter in self.parameters:
            self.site.write(parameter, self._weights[id(parameter)])
        self._weights = {}

    def copy_weights(self) -> None:
        """Copy the weights before a step."""
        if not self.corrects:
            return
        weights = self.load_weights()
        if self.previous is None:
            self.previous = [full(w).clone() for w in weights]
            return
        for previous, now in zip(self.previous, weights):
            if previous.dtype == now.dtype:
                previous.copy_(now)
            else:  # keep what was rounded in the last step
                torch.where(previous.to(now.dtype) == now, previous, now, out=previous)

    def project_step(self) -> None:
        """W ← W_before + ΔW F^½."""
        if not self.corrects or self.previous is None:
            return
        weights = self.load_weights()
        steps = [now - before for now, before in zip(weights, self.previous)]
        if self.previous[0].dtype == weights[0].dtype:
            self.projection.apply_(weights, of=steps, follow=self.drift)
            torch._foreach_copy_(self.previous, weights)
        else:
            torch._foreach_copy_(self.previous, weights)
            self.projection.apply_(self.previous, of=steps, follow=self.drift)
            torch._foreach_copy_(weights, self.previous)
        self.store_weights()

    # --- measurements ---------------------------------------------------------------------

    def passing(self) -> Tensor | None:
        """Compute <G, G F> and <G, G> `[2]`; None without gradients."""
        if not self.has_gradients():
            return None
        gradients = {id(p): self._gradient(p) for p in self.parameters}
        removed, total = self._energies(self.site.views(gradients, self.parameters))
        return torch.stack([total - removed, total])

    def moved(self) -> Tensor | None:
        """Compute <D, D A> and <W, W A> `[2]` for the change D of W since the last step."""
        if not self.corrects or self.previous is None or self.crossed:
            return None
        added = [now - before for now, before in zip(self.load_weights(), self.previous)]
        return torch.stack([self._energies(added)[0], self._energies(self.previous)[0]])

    def _energies(self, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute <X, X A> and <X, X>."""
        before = [full(part) for part in parts]
        after = [part.clone() for part in before]
        self.projection.apply_(after)
        total = _sum(x.square() for x in before)
        kept = (x * y if self.once else y.square() for x, y in zip(before, after))
        return total - _sum(kept), total


def _sum(parts: Iterator[Tensor]) -> Tensor:
    return torch.stack([part.sum() for part in parts]).sum()
