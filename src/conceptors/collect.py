"""One pass over a task's data: second moments of what enters every site, leaving no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from conceptors.layers import Call, Rule, Sample
from conceptors.moments import Moments, SketchedMoments
from conceptors.sites import Site

Feed = Callable[[nn.Module, Any], object]
Taker = tuple[Moments | SketchedMoments, int | None]  # and the bias column of the rows

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
    sketch: Callable[[str, int], int | None],
    progress: bool,
) -> dict[str, Moments | SketchedMoments]:
    """Moments of all sites that rows reached, over the batches.

    `cap` says how many rows are used at most, `sketch` how many directions are kept at most (None
    for all) of a layer with so many inputs.

    The model runs in evaluation mode without gradients; training flags, random state and hooks
    are as before afterwards, also after an exception.

    Raises:
        ValueError: no batch, no row reached any site, or rows that are not finite.
    """
    feed = feed or feed_first
    moments = {name: _empty(site, dtype, sketch) for name, site in sites.items()}
    sample = Sample(cap, seed)
    seen = 0
    reduced = dist.is_available() and dist.is_initialized()
    with _together(model, reduced), undisturbed(model), ExitStack() as hooks:
        for layer, (rule, takers) in _takers(sites, moments).items():
            hook = _recorder(rule, takers, sample)
            # before any other hook: FSDP takes the weights away in its own
            handle = layer.register_forward_hook(hook, with_kwargs=True, prepend=True)
            hooks.callback(handle.remove)
        for index, batch in enumerate(_progress(iterate(batches, limit), progress)):
            feed(model, batch)
            _check_finite(moments, index)
            seen += 1
    if not seen and not reduced:
        raise ValueError(
            "remember got no batches: the loader is empty (or already used up, if it is an "
            "iterator); nothing was remembered"
        )
    if reduced:
        for m in moments.values():
            m.all_reduce()
    moments = {name: m for name, m in moments.items() if m.weight > 0}
    if not moments:
        raise ValueError(
            f"no rows reached any of the {len(sites)} shielded layers in {seen} batches; check "
            f"that feed(model, batch) calls the model on samples; nothing was remembered"
        )
    return moments


@contextmanager
def _together(model: nn.Module, reduced: bool) -> Iterator[None]:
    """What fails on one process fails on all, so that none waits for the others forever."""
    if not reduced:
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    flag = torch.tensor(float(failure is not None), device=next(model.parameters()).device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    if failure is not None:
        raise failure
    if bool(flag):
        raise ValueError("remember failed on another process; nothing was remembered")


def _empty(
    site: Site, dtype: torch.dtype, sketch: Callable[[str, int], int | None]
) -> Moments | SketchedMoments:
    matrix = site.matrix(site.parameters)
    groups, dim = matrix.shape[0], matrix.shape[-1]
    like = torch.empty(0, dtype=dtype, device=matrix.device)
    rank = sketch(site.name, dim) if groups == 1 else None
    if rank is None or rank >= dim:
        return Moments(groups, dim, len(site.biases), like)
    return SketchedMoments(dim, rank, len(site.biases), like)


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


def _takers(
    sites: Mapping[str, Site], moments: Mapping[str, Moments | SketchedMoments]
) -> dict[nn.Module, tuple[Rule, dict[str, list[Taker]]]]:
    """For every layer its rule and, block by block, who takes the rows."""
    found: dict[nn.Module, tuple[Rule, dict[str, list[Taker]]]] = {}
    for name, site in sites.items():
        for source in site.sources:
            _, takers = found.setdefault(source.layer, (source.rule, {}))
            takers.setdefault(source.block.name, []).append((moments[name], source.bias_column))
    return found


def _recorder(rule: Rule, takers: Mapping[str, list[Taker]], sample: Sample) -> Callable[..., None]:
    """A forward hook that gives the rows of a layer's blocks to the sites they belong to."""

    def record(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for name, rows in rule.rows(layer, Call(args, kwargs, output), sample):
            for moments, bias_column in takers.get(name, ()):
                moments.add(rows, bias_column)

    return record


def _check_finite(moments: Mapping[str, Moments | SketchedMoments], index: int) -> None:
    good = torch.stack([m.finite() for m in moments.values()]).tolist()  # one wait a batch
    if not all(good):
        bad = [name for name, fine in zip(moments, good) if not fine]
        raise ValueError(
            f"NaN or infinite activations enter {bad[0]!r}"
            f"{f' (and {len(bad) - 1} more layers)' if len(bad) > 1 else ''} in batch {index}; "
            f"nothing was remembered. Check that batch, or whether training diverged"
        )


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
