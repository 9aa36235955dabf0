"""One pass over a task's data: second moments of what enters every site, leaving no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from conceptors.layers import Call, Sample
from conceptors.moments import Moments
from conceptors.sites import Site, Source

Feed = Callable[[nn.Module, Any], object]

_TENSOR_BATCH = 256


def collect(
    model: nn.Module,
    sites: Mapping[str, Site],
    batches: Any,
    *,
    feed: Feed | None,
    limit: int | None,
    cap: Callable[[int], int | None],
    seed: int,
    dtype: torch.dtype,
    progress: bool,
) -> dict[str, Moments]:
    """Moments of all sites over the batches.

    The model runs in evaluation mode without gradients; training flags, random state and hooks
    are as before afterwards, also after an exception.

    Raises:
        ValueError: no batch, no row reached any site, or rows that are not finite.
    """
    feed = feed or feed_first
    moments = {name: Moments(len(site.biases), dtype) for name, site in sites.items()}
    sample = Sample(cap, seed)
    seen = 0
    with undisturbed(model), ExitStack() as hooks:
        for name, site in sites.items():
            for source in site.sources:
                hook = _recorder(moments[name], source, sample)
                handle = source.layer.register_forward_hook(hook, with_kwargs=True)
                hooks.callback(handle.remove)
        for index, batch in enumerate(_progress(iterate(batches, limit), progress)):
            feed(model, batch)
            _check_finite(moments, index)
            seen += 1
    reduced = dist.is_available() and dist.is_initialized()
    if not seen and not reduced:
        raise ValueError(
            "remember got no batches: the loader is empty (or already used up, if it is an "
            "iterator); nothing was remembered"
        )
    if reduced:
        _all_reduce(moments, sites)
    if all(m.correlation() is None for m in moments.values()):
        raise ValueError(
            f"no rows reached any of the {len(sites)} shielded layers in {seen} batches; check "
            f"that feed(model, batch) calls the model on samples; nothing was remembered"
        )
    return moments


def feed_first(model: nn.Module, batch: Any) -> object:
    """The usual way to feed a batch: a tensor, the first of a pair, or a mapping by name."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if isinstance(batch, Mapping):
        return model(**{k: _to(v, device) for k, v in batch.items()})
    if isinstance(batch, (tuple, list)):
        batch = batch[0]
    return model(_to(batch, device))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients or compiled shortcuts; everything restored on leaving."""
    flags = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)  # it bypasses the layers it is made of
        with (
            torch.no_grad(),
            torch.random.fork_rng([d.index or 0 for d in devices], device_type="cuda"),
            torch.compiler.set_stance("force_eager"),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, flag in flags:
            module.training = flag


def iterate(batches: Any, limit: int | None) -> Iterator[Any]:
    """Batches of a loader, an iterable, or a tensor of samples, up to `limit` samples in all."""
    if isinstance(batches, Tensor):
        batches = batches.split(_TENSOR_BATCH) if len(batches) else []
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"remember takes a DataLoader, an iterable of batches or a tensor of samples, got "
            f"{type(batches).__name__}"
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


def _recorder(moments: Moments, source: Source, sample: Sample) -> Callable[..., None]:
    def record(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for name, rows in source.rule.rows(layer, Call(args, kwargs, output), sample):
            if name == source.block.name:
                moments.add(rows, source.bias_column)

    return record


def _check_finite(moments: Mapping[str, Moments], index: int) -> None:
    named = [(name, m.total) for name, m in moments.items() if m.total is not None]
    if not named:
        return
    good = torch.stack([total.sum().isfinite().cpu() for _, total in named])
    if not bool(good.all()):
        bad = [name for (name, _), fine in zip(named, good.tolist()) if not fine]
        raise ValueError(
            f"NaN or infinite activations enter {bad[0]!r}"
            f"{f' (and {len(bad) - 1} more layers)' if len(bad) > 1 else ''} in batch {index}; "
            f"nothing was remembered. Check that batch, or whether training diverged"
        )


def _all_reduce(moments: Mapping[str, Moments], sites: Mapping[str, Site]) -> None:
    for name, m in moments.items():
        site = sites[name]
        matrix = site.matrix(site.parameters)
        size = torch.Size((matrix.shape[0], matrix.shape[-1], matrix.shape[-1]))
        m.all_reduce(size, matrix.device)


def _progress(batches: Iterator[Any], shown: bool) -> Iterable[Any]:
    if not shown:
        return batches
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress bars need tqdm: pip install 'conceptors[progress]'") from None
    return tqdm(batches, desc="remember", unit="batch")  # type: ignore[no-any-return]


def _to(value: Any, device: torch.device) -> Any:
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
