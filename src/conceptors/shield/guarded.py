"""A block of weights as one optimizer steps it: gradients, weights, and their projection."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from conceptors._internal.distributed import is_sharded, shard_like
from conceptors._internal.precision import full, tensor_cores
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.projection import Factored, FreeSpace, Parts, make_projection

# rounding in TF32 (11 bits) or on a CPU in bfloat16 (8 bits) is small beside √(1 - s)
_SOFT = {"cuda": 1 - 2**-14, "cpu": 1 - 2**-10}
_LARGE = 2**23  # rounding does not speed up smaller products


class GuardedBlock:
    """A block, or those of its parameters that one optimizer steps.

    Attributes:
        once: whether gradients or steps are multiplied by F, instead of both by F^½.
        stretch: the factor of steps, see `guard`.
        corrects: whether steps are projected.
        rough: whether the factors of products may be rounded, because a soft conceptor lets more
            through, or a pull corrects the drift.
        crossed: whether another block shares some of its memory in another layout.
        hard: whether a second projection changes nothing.
        scale: the factor `[]` of a gradient scaler, which the pull needs too.
        origin: W_previous in the coordinates of the projection; None without a pull.
        drift: W - W_previous in coordinates, which follows the steps.
        previous: the weights before a step, and after it; None before the first step. Weights in
            half precision are followed in float32, so that rounding does not add up.
    """

    def __init__(
        self,
        block: WeightBlock,
        parameters: list[nn.Parameter],
        free: FreeSpace,
        scale: Tensor,
        *,
        once: bool = False,
        stretch: float = 1.0,
        corrects: bool = True,
        crossed: bool = False,
        anchors: Sequence[Tensor] = (),
    ) -> None:
        self.name, self.block, self.parameters = block.name, block, parameters
        self.once, self.corrects, self.crossed, self.scale = once, corrects, crossed, scale
        self.stretch, self.hard = stretch, free.hard
        self.device, self.dtype = parameters[0].device, full(parameters[0].data).dtype
        self.is_sharded = any(is_sharded(p.data) for p in parameters)
        self.is_gathered = self.is_sharded and not block.spec.rows_first
        self._views = [block.view_of(p) for p in parameters]
        is_soft = float(free.values.max()) < _SOFT.get(self.device.type, 0.0)
        size = sum(p.numel() for p in parameters) * free.rank
        self.rough = corrects and size > _LARGE and (is_soft or free.stiffness is not None)
        self.precision = partial(tensor_cores, cpu=True) if self.rough else nullcontext
        dense = not (corrects or self.is_sharded)
        self.projection = make_projection(free, once, dense, self.dtype)
        self.origin: Tensor | None = None
        self.drift: Tensor | None = None
        self.previous: list[Tensor] | None = None
        if not self.is_gathered:
            self._view_weights()
        if self.projection.pulls and anchors:
            before = [block.plain(anchor) for anchor in anchors]
            self.origin = self.projection.coordinates(self.views(before)).clone()

    @property
    def about(self) -> str:
        """A description for `Shield.explain`."""
        return "gradients projected" if self.once else "gradients and steps projected"

    # --- around a step --------------------------------------------------------------------

    def copy_weights(self) -> None:
        """Copy the weights before a step."""
        if not self.corrects:
            return
        weights = self.weights
        if self.previous is None:
            self.previous = [full(w).clone() for w in weights]
            return
        for previous, now in zip(self.previous, weights):
            if previous.dtype == now.dtype:
                previous.copy_(now)
            else:  # keep what was rounded in the last step
                torch.where(previous.to(now.dtype) == now, previous, now, out=previous)

    def round(self) -> None:
        """Forget what was rounded in the last step."""
        if self.previous is None:
            return
        self._view_weights()
        for previous, now in zip(self.previous, self._weights):
            if previous.dtype != now.dtype:
                previous.copy_(now)

    def project_gradient(self) -> None:
        """G ← G F^½ in place, plus the pull."""
        if self.has_gradients():
            gradients = self.gradients()
            self.project_parts(self.views(gradients))
            self.write_gradients(gradients)

    def project_parts(self, parts: Parts) -> None:
        """Project a gradient that is given in parts."""
        if not self.corrects or self.crossed:
            self.measure_drift()  # it does not follow the steps
        with self.precision():
            self.projection.apply_(
                parts, drift=None if self.drift is None else self.drift * self.scale
            )

    def project_step(self) -> None:
        """W ← W_before + k ΔW F^½, with k = `stretch`."""
        if not self.corrects or self.previous is None:
            return
        weights, exact = self.weights, self.previous
        steps = [now - before for now, before in zip(weights, exact)]
        is_half = exact[0].dtype != weights[0].dtype
        if is_half:
            torch._foreach_copy_(exact, weights)
        target, copy = (exact, weights) if is_half else (weights, exact)
        if self.stretch != 1:
            torch._foreach_add_(target, steps, alpha=self.stretch - 1)
            torch._foreach_mul_(steps, self.stretch)
        with self.precision():
            self.projection.apply_(target, of=steps, follow=self.drift)
        torch._foreach_copy_(copy, target)
        self.write_weights()

    def measure_drift(self) -> None:
        """Compute W - W_previous in coordinates."""
        if self.origin is not None:
            now = self.projection.coordinates(self.weights) - self.origin
            self.drift = now if self.drift is None else self.drift.copy_(now)

    # --- memory ---------------------------------------------------------------------------

    def views(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """View one tensor per parameter as `[g, out, ...]`."""
        return [view(tensor) for view, tensor in zip(self._views, tensors)]

    @property
    def weights(self) -> list[Tensor]:
        """The parameters as views `[g, out, ...]`, of copies where they are gathered."""
        if self.is_gathered:
            self._view_weights()
        return self._weights

    def _view_weights(self) -> None:
        """View the weights, which other code may have moved in memory, or gather them."""
        self._plain = [self.block.plain(p.data) for p in self.parameters]
        self._weights = self.views(self._plain)

    def write_weights(self) -> None:
        """Write weights back that were gathered."""
        for parameter, value in zip(self.parameters, self._plain) if self.is_gathered else ():
            parameter.data.copy_(shard_like(value, parameter.data))

    def has_gradients(self) -> bool:
        """Whether there are any gradients; missing ones of some parameters are zeros.

        Where gradients alone are projected, the optimizer receives the zeros, because a step that
        is not projected is in the free space only as a whole.
        """
        missing = [p for p in self.parameters if p.grad is None]
        if len(missing) == len(self.parameters):
            return False
        for parameter in missing if self.once else ():
            parameter.grad = torch.zeros_like(parameter)
        return True

    def gradients(self) -> list[Tensor]:
        """Return the gradients as plain tensors; see `has_gradients`."""
        return [self._gradient(p) for p in self.parameters]

    def _gradient(self, parameter: nn.Parameter) -> Tensor:
        gradient: Any = parameter.grad
        if gradient is None:
            return torch.zeros_like(self.block.plain(parameter.data))
        if gradient.layout == torch.sparse_coo:
            return gradient.to_dense()  # type: ignore[no-any-return]
        if self.is_sharded:
            return self.block.plain(gradient)
        if gradient.stride() != parameter.stride():
            return torch.empty_like(parameter.data).copy_(gradient)  # whose views share memory
        return gradient  # type: ignore[no-any-return]

    def write_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Write gradients back that were read as copies: sparse, gathered, or of other strides."""
        for parameter, value in zip(self.parameters, gradients):
            gradient: Any = parameter.grad
            if gradient is None or gradient is value:
                continue
            if gradient.layout == torch.sparse_coo:
                places = gradient.coalesce().indices()
                parameter.grad = torch.sparse_coo_tensor(
                    places, value[places[0]], value.shape, check_invariants=False
                )
            elif self.is_gathered:
                gradient.copy_(shard_like(value, gradient))
            elif not self.is_sharded:
                gradient.copy_(value)

    # --- measurements ---------------------------------------------------------------------

    def passing(self) -> Tensor | None:
        """Compute <G, G F> and <G, G> `[2]`; None without gradients."""
        if not self.has_gradients():
            return None
        removed, total = self._energies(self.views(self.gradients()))
        return torch.stack([total - removed, total])

    def moved(self) -> Tensor | None:
        """Compute <D, D A> and <W, W A> `[2]` for the change D of W since the last step."""
        if not self.corrects or self.previous is None or self.crossed:
            return None
        self._view_weights()
        added = [now - before for now, before in zip(self._weights, self.previous)]
        if not any(map(torch.any, added)):  # nearly always, and costs no product
            return torch.zeros(2)
        return torch.stack([self._energies(added)[0], self._energies(self.previous)[0]])

    def _energies(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Compute <X, X A> and <X, X>."""
        before = [full(part) for part in parts]
        total = _sum(x.square() for x in before)
        if type(self.projection) is Factored:
            gain = self.projection.gain  # s, or 1 - √(1 - s)
            with self.precision():
                x = self.projection.coordinates(before)
            return (x.square_() * (gain if self.once else gain * (2 - gain))).sum(), total
        after = [part.clone() for part in before]
        self.projection.apply_(after)
        kept = (x * y if self.once else y.square() for x, y in zip(before, after))
        return total - _sum(kept), total


def _sum(parts: Iterator[Tensor]) -> Tensor:
    return torch.stack([part.sum() for part in parts]).sum()
