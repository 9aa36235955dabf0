"""Uses of weights that hooks do not see: without a call of their layer, or inside its own forward.

A rule covers the functions inside a call of its layer, and expects the arguments of the class that
it was registered for. A subclass that overrides forward may change them before they reach the
weight (positions of a mask, permuted channels). For layers that are a single torch function, the
arguments of that function are the inputs.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from conceptors.layers.base import Call, owner_of

_KINDS = ("tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint")
_FORMS = {f"new_{kind}" for kind in _KINDS} | {f"{kind}_like" for kind in _KINDS}
_READS = {"item", "tolist", "numpy", "__float__", "__int__", "__bool__"}

_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ARGUMENTS: dict[object, tuple[str, ...]] = {  # of the functions that layers call
    functional.linear: ("input", "weight", "bias"),
    functional.embedding: ("input", "weight"),
    functional.layer_norm: ("input", "normalized_shape", "weight", "bias"),
    functional.rms_norm: ("input", "normalized_shape", "weight"),
    functional.group_norm: ("input", "num_groups", "weight", "bias"),
    functional.batch_norm: ("input", "running_mean", "running_var", "weight", "bias"),
    **dict.fromkeys(_CONVOLUTIONS, _CONV),
}
_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}  # of convolutions
SINGLE = (  # layers that are one torch function
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Conv1d, nn.Conv2d, nn.Conv3d),
)


class WeightUses(TorchFunctionMode):
    """Observe which torch functions receive weights.

    Args:
        weights: names of blocks, by the ids of the parameters that rules cover.
        bare: names of bare parameters, by their ids.

    Attributes:
        stray: how weights are used that no rule covers, by block.
        bare_used: names of the bare parameters that are used.
    """

    def __init__(self, weights: Mapping[int, str], bare: Mapping[int, str]) -> None:
        super().__init__()
        self.stray: dict[str, str] = {}
        self.bare_used: set[str] = set()
        self._weights, self._bare = weights, bare
        self._open: list[nn.Module] = []  # layers whose forward runs
        self._calls: dict[nn.Module, list[Call]] = {}  # inside those that override forward

    def restart(self) -> None:
        """Forget layers whose forward failed."""
        self._open, self._calls = [], {}

    def enter(self, layer: nn.Module) -> None:
        """Note that the forward of a layer begins."""
        self._open.append(layer)
        if overrides_forward(layer):
            self._calls[layer] = []

    def leave(self, layer: nn.Module) -> None:
        """Note that the forward of a layer ends."""
        while layer in self._open:  # and layers inside it that failed
            self._open.pop()
        self._calls.pop(layer, None)

    def calls(self, layer: nn.Module, call: Call) -> list[Call]:
        """Return the calls that a call of a layer stands for, as the layer's rule expects them."""
        return self._calls.pop(layer, [call])

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = _name(func)
        if name in _FORMS:  # uses only a tensor's dtype and device
            return result
        ids = [id(x) for x in _tensors([*args, *kwargs.values()])]
        is_shape = isinstance(result, torch.Size)
        has_numbers = isinstance(result, (Tensor, tuple, list)) and not is_shape
        if has_numbers and not self._is_covered(func, args, kwargs, result):
            layer = type(self._open[-1]).__name__ if self._open else None
            where = f"in {layer}.forward" if layer else "without a call of its layer"
            strays = [self._weights[i] for i in ids if i in self._weights]
            self.stray |= dict.fromkeys(strays, f"used by {name} {where}")
        is_written = result is None and not name.startswith(".")  # into another tensor
        if has_numbers or is_written or name in _READS:
            self.bare_used.update(self._bare[i] for i in ids if i in self._bare)
        return result

    def _is_covered(self, func: Any, args: Any, kwargs: Any, result: Any) -> bool:
        """Whether a rule covers a function: inside a layer, or as all that its forward calls."""
        layer = self._open[-1] if self._open else None
        if layer is None or layer not in self._calls:
            return layer is not None
        call = _inner_call(layer, func, args, kwargs, result)
        if call is not None:
            self._calls[layer].append(call)
        return call is not None


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (x for x in value if isinstance(x, Tensor))


def _name(func: Any) -> str:
    name = str(getattr(func, "__name__", func))
    if name == "__get__":  # reads an attribute such as .T
        return f".{getattr(getattr(func, '__self__', None), '__name__', 'attribute')}"
    return name


def overrides_forward(layer: nn.Module) -> bool:
    """Whether a layer overrides the forward of the class that its rule is for."""
    owner = owner_of(layer)
    if owner is None:
        return False
    return "forward" in layer.__dict__ or type(layer).forward is not owner.forward


def _inner_call(layer: Any, func: Any, args: Any, kwargs: Any, output: Any) -> Call | None:
    """Return the layer call that a function call stands for; None if it stands for none."""
    weight = getattr(layer, "weight", None)
    if isinstance(layer, nn.Embedding) and func == Tensor.__getitem__ and args[0] is weight:
        where = args[1][0] if isinstance(args[1], tuple) else args[1]
        tokens = torch.arange(layer.num_embeddings, device=output.device)[where]
        return Call((tokens,), {}, output)
    names = _ARGUMENTS.get(func)
    if names is None or not isinstance(layer, SINGLE) or weight is None:
        return None
    passed: dict[str, Any] = {"weight": None, "bias": None}
    passed |= _DEFAULTS if func in _CONVOLUTIONS else {}
    passed |= dict(zip(names, args)) | {k: v for k, v in kwargs.items() if k in names}
    x, pads_zeros = passed.pop("input"), getattr(layer, "padding_mode", "zeros") == "zeros"
    fits = all(_is_same(value, getattr(layer, name, None)) for name, value in passed.items())
    return Call((x,), {}, output) if fits and pads_zeros else None


def _is_same(passed: Any, own: Any) -> bool:
    """Whether an argument is the layer's own parameter or setting."""
    if isinstance(own, tuple) and isinstance(passed, int):
        passed = (passed,) * len(own)
    return passed is own or (not isinstance(own, Tensor) and bool(passed == own))
