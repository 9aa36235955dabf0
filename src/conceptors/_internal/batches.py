"""Iterate over batches in their usual forms, and run a model on them without side effects."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from inspect import signature
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from conceptors._internal.checks import needs, outside

Feed = Callable[[nn.Module, Any], object]

_ONE_AT_A_TIME = RLock()
_TENSOR_BATCH = 256
_FEED = "define how to call the model: feed=lambda model, batch: model(batch[0], batch[1])"


def feed_first(model: nn.Module, batch: Any) -> object:
    """Call the model with a tensor, the first element of a tuple, or a mapping by name."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        if isinstance(batch, Mapping):
            return model(**{k: moved(v, device) for k, v in batch.items()})
        if not isinstance(batch, (tuple, list)):
            return model(moved(batch, device))
        _warn_of_unused_parts(model, batch)
        return model(moved(batch[0], device))
    except TypeError as error:
        if "argument" not in str(error):  # the model has failed on the right arguments
            raise
        kind = f"mapping of {list(batch)}" if isinstance(batch, Mapping) else type(batch).__name__
        kind += " (the first element was passed)" * isinstance(batch, (tuple, list))
        raise TypeError(
            f"the model could not be called with a {kind}: {error}; {_how_to_feed(batch)}"
        ) from error


def _warn_of_unused_parts(model: nn.Module, batch: Any) -> None:
    """Warn if the model may need more of a batch, as a mask in (ids, mask, labels)."""
    arguments = signature(model.forward).parameters.values()
    accepted = [p.name for p in arguments if p.kind <= p.POSITIONAL_OR_KEYWORD]
    if len(batch) > 2 and len(accepted) > 1:
        warnings.warn(
            f"only the first of {len(batch)} elements of a batch is passed to the model, which "
            f"accepts {', '.join(accepted[:4])}; if it needs more, {_FEED}; to silence this, "
            f"feed=lambda model, batch: model(batch[0])",
            stacklevel=outside(),
        )


def _how_to_feed(batch: Any) -> str:
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    first = parts[0] if isinstance(parts, (list, tuple)) and parts else parts
    if isinstance(first, (str, list)) or type(first).__module__ == "numpy":
        return "pass tensors: torch.as_tensor(array), or tokenizer(texts, return_tensors='pt')"
    if not isinstance(batch, Mapping):
        return _FEED
    return _FEED.replace("batch[0], batch[1]", f"batch[{next(iter(batch), 'inputs')!r}]")


def check_batches(batches: Any, who: str) -> None:
    """Refuse a single batch where batches are expected: its parts would pass for batches."""
    if isinstance(batches, Mapping):
        raise TypeError(f"{who} takes batches but got one mapping of {list(batches)}; pass [batch]")
    if not isinstance(batches, tuple) or not all(isinstance(x, Tensor) for x in batches):
        return
    kinds = {(x.dtype, x.shape[1:]) for x in batches}
    if len(kinds) > 1 and len({len(x) for x in batches if x.ndim}) == 1:
        raise TypeError(
            f"{who} takes batches but got one tuple of tensors of shapes "
            f"{[list(x.shape) for x in batches]}; pass the inputs alone or [(inputs, targets)]"
        )


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, without gradients or compiled shortcuts; restore everything on exit.

    Only one thread at a time is inside: random state and some settings are process-wide.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the network must be an nn.Module, got {type(model).__name__}; pass the module and "
            f"call it as you need in feed=lambda model, batch: ..."
        )
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    forked, fast = torch.random.fork_rng(devices, device_type="cuda"), torch.backends.mha
    with _ONE_AT_A_TIME, forked, torch.no_grad(), ExitStack() as settings:
        settings.enter_context(torch.compiler.set_stance("force_eager"))
        settings.callback(fast.set_fastpath_enabled, fast.get_fastpath_enabled())
        fast.set_fastpath_enabled(False)  # the fast path bypasses the layers inside
        for module in model.modules():
            settings.callback(setattr, module, "training", module.training)
        model.eval()
        yield


def iterate(batches: Any, limit: int | None, who: str) -> Iterator[Any]:
    """Yield batches of a loader, an iterable or a tensor of samples, up to `limit` samples."""
    if isinstance(batches, Tensor):
        batches = batches.split(_TENSOR_BATCH) if len(batches) else []
    if not isinstance(batches, Iterable):
        hint = "; wrap it: DataLoader(dataset, 256)" if isinstance(batches, Dataset) else ""
        raise TypeError(
            f"{who} takes a DataLoader, an iterable of batches or a tensor of samples, got "
            f"{type(batches).__name__}{hint}"
        )
    remaining = math.inf if limit is None else limit
    for batch in batches:
        size = _size(batch)
        if size == 0:
            continue
        if remaining <= 0:
            return
        yield batch if size is None or size <= remaining else _first(batch, size, int(remaining))
        remaining -= size or 0


def expected(batches: Any, limit: int | None, first: Any) -> int | None:
    """Estimate the number of batches from the first one; None if unknown."""
    counts: list[int] = []
    with suppress(TypeError, NotImplementedError):
        counts.append(len(batches.split(_TENSOR_BATCH) if isinstance(batches, Tensor) else batches))
    if limit is not None and (size := _size(first)):
        counts.append(math.ceil(limit / size))
    return min(counts, default=None)


def with_progress(batches: Iterable[Any], shown: bool, what: str) -> Iterable[Any]:
    if not shown:
        return batches
    with needs("progress", "progress bars need tqdm"):
        from tqdm.auto import tqdm
    return tqdm(batches, desc=what, unit="batch")  # type: ignore[no-any-return]


def moved(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value


def _size(batch: Any) -> int | None:
    """Return the number of samples in a batch; None if unknown."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    values = batch if isinstance(batch, (list, tuple)) else [batch]
    return next((len(v) for v in values if isinstance(v, Tensor) and v.ndim), None)


def _first(batch: Any, size: int, count: int) -> Any:
    """Return the first samples of a batch, in the same form."""
    if isinstance(batch, Tensor):
        return batch[:count] if batch.ndim and len(batch) == size else batch
    if isinstance(batch, Mapping):
        return {k: _first(v, size, count) for k, v in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_first(v, size, count) for v in batch]
    return batch
