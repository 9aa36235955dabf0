"""Batches as people have them, and a model that is run on them without leaving a trace."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from conceptors._internal.outside import outside
from conceptors._internal.threads import SharedSetting

Feed = Callable[[nn.Module, Any], object]

_TENSOR_BATCH = 256
_FEED = "say how the model takes a batch by feed=lambda model, batch: model(batch[0], batch[1])"


def feed_first(model: nn.Module, batch: Any) -> object:
    """The usual way to feed a batch: a tensor, the first of a pair, or a mapping by name."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        if isinstance(batch, Mapping):
            return model(**{k: moved(v, device) for k, v in batch.items()})
        first = batch[0] if isinstance(batch, (tuple, list)) else batch
        _tell_what_is_left_out(model, batch)
        return model(moved(first, device))
    except (TypeError, RuntimeError) as error:
        if type(error) not in (TypeError, RuntimeError):  # memory is short, or the like
            raise
        raise type(error)(
            f"the model could not be called with a batch that is {_described(batch)}: {error}; "
            f"{_how_to_feed(model, batch)}"
        ) from error


def _tell_what_is_left_out(model: nn.Module, batch: Any) -> None:
    """Warn of a batch like (ids, mask, labels) for a model that takes masks."""
    if not isinstance(batch, (tuple, list)) or len(batch) < 3:
        return
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    takes = [p.name for p in signature(model.forward).parameters.values() if p.kind in kinds]
    if len(takes) > 1:
        listed = ", ".join(takes[:4]) + (", …" if len(takes) > 4 else "")
        warnings.warn(
            f"of batches of {len(batch)} only the first part is given to the model, which takes "
            f"{listed}; if more of it belongs there, "
            f"{_FEED}, and if not, feed=lambda model, batch: model(batch[0])",
            stacklevel=outside(),
        )


def _how_to_feed(model: nn.Module | None, batch: Any) -> str:
    if not isinstance(batch, Mapping):
        return _FEED
    takes = signature(model.forward).parameters if model is not None else {}
    parts = [name for name in batch if name in takes] or list(batch)[:1] or ["inputs"]
    return _FEED.replace("batch[0], batch[1]", ", ".join(f"batch[{name!r}]" for name in parts))


def _described(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a mapping of {list(batch)}"
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of {len(batch)}, of which the first part was passed"
    return f"a {type(batch).__name__}"


def check_batches(batches: Any, who: str) -> None:
    """Refuse one batch where batches are expected: it would be taken apart in silence."""
    if isinstance(batches, Mapping):
        raise TypeError(
            f"{who} takes batches, and got one mapping of {list(batches)}: pass a DataLoader "
            f"or [batch]; {_how_to_feed(None, batches)}"
        )
    if not isinstance(batches, tuple) or not all(isinstance(x, Tensor) for x in batches):
        return
    kinds = {(x.dtype, x.shape[1:]) for x in batches}
    if len(kinds) > 1 and len({len(x) for x in batches if x.ndim}) == 1:
        raise TypeError(
            f"{who} takes batches, and got one tuple of tensors of shapes "
            f"{[list(x.shape) for x in batches]}: pass the inputs alone, a DataLoader, or "
            f"[(inputs, targets)]; {_FEED}"
        )


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients or compiled shortcuts; everything restored on leaving."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the network must be an nn.Module, got {type(model).__name__}; what is done with it "
            f"beyond calling it goes into feed=lambda model, batch: ..."
        )
    flags = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    forked = [d.index or 0 for d in devices]
    try:
        model.eval()
        with (
            torch.no_grad(),
            _EAGER(),
            torch.random.fork_rng(forked, device_type="cuda", enabled=bool(forked)),
        ):
            yield
    finally:
        for module, flag in flags:
            module.training = flag


def _go_eager(stack: ExitStack) -> None:
    fast = torch.backends.mha.get_fastpath_enabled()
    stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
    torch.backends.mha.set_fastpath_enabled(False)  # it bypasses the layers it is made of
    stack.enter_context(torch.random.fork_rng([]))
    stack.enter_context(torch.compiler.set_stance("force_eager"))


_EAGER = SharedSetting(_go_eager)


def iterate(batches: Any, limit: int | None, who: str) -> Iterator[Any]:
    """Batches of a loader, an iterable, or a tensor of samples, up to `limit` samples in all."""
    if isinstance(batches, Tensor):
        batches = batches.split(_TENSOR_BATCH) if len(batches) else []
    if not isinstance(batches, Iterable):
        hint = "; wrap it: DataLoader(dataset, 256)" if isinstance(batches, Dataset) else ""
        raise TypeError(
            f"{who} takes a DataLoader, an iterable of batches or a tensor of samples, got "
            f"{type(batches).__name__}{hint}"
        )
    left = limit
    for batch in batches:
        size = _size(batch)
        if size == 0:
            continue
        if left is None or size is None:
            yield batch
            continue
        if left <= 0:
            return
        yield batch if size <= left else _first(batch, size, left)
        left -= size


def expected(batches: Any, limit: int | None, first: Any) -> int | None:
    """How many batches will come, as far as that can be told from the first one."""
    count: int | None = None
    with suppress(TypeError, NotImplementedError):
        count = len(batches)
    if count is not None and isinstance(batches, Tensor):
        count = math.ceil(count / _TENSOR_BATCH)
    size = _size(first)
    if limit is None or not size:
        return count
    most = math.ceil(limit / size)
    return most if count is None else min(most, count)


def with_progress(batches: Iterator[Any], shown: bool, what: str) -> Iterable[Any]:
    if not shown:
        return batches
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress bars need tqdm: pip install 'conceptors[progress]'") from None
    return tqdm(batches, desc=what, unit="batch")  # type: ignore[no-any-return]


def moved(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value


def _size(batch: Any) -> int | None:
    """Number of samples in a batch, where that can be told."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else None
    values = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(values, (list, tuple)) or isinstance(batch, Mapping):
        return next((len(v) for v in values if isinstance(v, Tensor) and v.ndim), None)
    return None


def _first(batch: Any, size: int, count: int) -> Any:
    """The first samples of a batch, in the same form."""
    if isinstance(batch, Tensor):
        return batch[:count] if batch.ndim and len(batch) == size else batch
    if isinstance(batch, Mapping):
        return {k: _first(v, size, count) for k, v in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_first(v, size, count) for v in batch]
    return batch
