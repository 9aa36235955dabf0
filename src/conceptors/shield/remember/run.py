"""One pass over a task's data: second moments of what enters every site, leaving no trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from conceptors._internal import checks
from conceptors._internal.threads import SharedSetting
from conceptors.layers import Draws, Rule
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.remember.moments import Moments, Products, SketchedMoments
from conceptors.shield.remember.recorder import Recorder, SamplingPlan, Taker, Watch
from conceptors.shield.remember.uses import Use, Uses, refuse

Feed = Callable[[nn.Module, Any], object]

_TENSOR_BATCH = 256
_CHECK = 64  # batches between waits for the device
_FEED = "say how the model takes a batch by feed=lambda model, batch: model(batch[0], batch[1])"


def collect(
    model: nn.Module,
    sites: Mapping[str, WeightBlock],
    batches: Any,
    *,
    feed: Feed | None,
    limit: int | None,
    rows: int | Literal["auto"] | None,
    seed: int,
    dtype: torch.dtype,
    sketch: Callable[[int], int | None],
    progress: bool,
    strays: Callable[[Iterable[Use]], None] = refuse,
) -> dict[str, Moments | SketchedMoments]:
    """Moments of all sites that rows reached, over the batches.

    `rows` says which rows are used (see `recorder`), `sketch` how many directions are kept at
    most (None for all) of a layer with so many inputs, `strays` what to do about weights that are
    used where no rule covers it.

    The model runs in evaluation mode without gradients; training flags, random state and hooks
    are as before afterwards, also after an exception.

    Raises:
        ValueError: no batch, no row reached any site, rows that are not finite, a rule that fails,
            or weights that are used where no rule covers it.
    """
    check_batches(batches)
    feed = feed or feed_first
    limit = None if limit is None else checks.whole(limit, "limit", 1)
    products = Products()
    moments = {name: _empty(site, dtype, sketch, products) for name, site in sites.items()}
    plan, draws, watch, uses = SamplingPlan(rows, seed), Draws(seed), Watch(), Uses(sites)
    seen = 0
    reduced = dist.is_available() and dist.is_initialized()
    with _together(model, reduced), undisturbed(model), ExitStack() as hooks:
        recorders = _recorders(sites, moments, plan, draws, watch, uses)
        for recorder in recorders:
            hooks.callback(recorder.close)
        for index, batch in enumerate(_progress(iterate(batches, limit), progress)):
            if not index:
                plan.batches = _expected(batches, limit, batch)
            plan.begin(index, [recorder.filled() for recorder in recorders])
            wanted = {recorder.begin(batch) for recorder in recorders}
            if True in wanted or reduced:  # sharded models need all processes at every pass
                with uses.watching(index):
                    feed(model, batch)
                _each(recorders, Recorder.compare, batch)
                draws.renew()
            else:
                _each(recorders, Recorder.take, batch)
            seen += 1
            if seen % _CHECK == 0:
                watch.check()
        watch.check()
        for recorder in recorders:
            recorder.check()
        strays(uses.stray)
        for m in moments.values():
            m.flush()
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
        listed = ", ".join(list(sites)[:5]) + (", ..." if len(sites) > 5 else "")
        raise ValueError(
            f"no rows reached any of {len(sites)} shielded layers ({listed}) in {seen} batches; "
            f"check that feed(model, batch) calls the model on samples, and that not all it uses "
            f"is frozen or excluded; nothing was remembered"
        )
    return moments


def _each(recorders: list[Recorder], what: Callable[[Recorder, Any], None], batch: Any) -> None:
    for recorder in recorders:
        what(recorder, batch)


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
    site: WeightBlock,
    dtype: torch.dtype,
    sketch: Callable[[int], int | None],
    products: Products,
) -> Moments | SketchedMoments:
    matrix = site.matrix(site.parameters)
    groups, dim = matrix.shape[0], matrix.shape[-1]
    like = torch.empty(0, dtype=dtype, device=matrix.device)
    rank = sketch(dim) if groups == 1 else None
    if rank is None or rank >= dim:
        met = site.block.layout == "tokens"
        return Moments(groups, dim, len(site.biases), like, products, presence=met)
    return SketchedMoments(dim, rank, len(site.biases), like)


def feed_first(model: nn.Module, batch: Any) -> object:
    """The usual way to feed a batch: a tensor, the first of a pair, or a mapping by name."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        if isinstance(batch, Mapping):
            return model(**{k: _to(v, device) for k, v in batch.items()})
        first = batch[0] if isinstance(batch, (tuple, list)) else batch
        return model(_to(first, device))
    except TypeError as error:
        raise TypeError(
            f"the model could not be called with a batch that is {_described(batch)}: {error}; "
            f"{_FEED}"
        ) from error


def _described(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a mapping of {list(batch)}"
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of {len(batch)}, of which the first part was passed"
    return f"a {type(batch).__name__}"


def check_batches(batches: Any) -> None:
    """Refuse one batch where batches are expected: it would be taken apart in silence."""
    if isinstance(batches, Mapping):
        raise TypeError(
            f"remember takes batches, and got one mapping of {list(batches)}: pass a DataLoader "
            f"or [batch]; {_FEED}"
        )
    if not isinstance(batches, tuple) or not all(isinstance(x, Tensor) for x in batches):
        return
    kinds = {(x.dtype, x.shape[1:]) for x in batches}
    if len(kinds) > 1 and len({len(x) for x in batches if x.ndim}) == 1:
        raise TypeError(
            f"remember takes batches, and got one tuple of tensors of shapes "
            f"{[list(x.shape) for x in batches]}: pass the inputs alone, a DataLoader, or "
            f"[(inputs, targets)]; {_FEED}"
        )


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients or compiled shortcuts; everything restored on leaving."""
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


def _recorders(
    sites: Mapping[str, WeightBlock],
    moments: Mapping[str, Moments | SketchedMoments],
    plan: SamplingPlan,
    draws: Draws,
    watch: Watch,
    uses: Uses,
) -> list[Recorder]:
    """One for every layer that feeds a site."""
    rules: dict[nn.Module, Rule] = {}
    takers: dict[nn.Module, dict[str, list[Taker]]] = {}
    outputs: dict[nn.Module, int] = {}
    for name, site in sites.items():
        out = site.matrix(site.parameters).shape[1]
        for source in site.sources:
            rules[source.layer] = source.rule
            blocks = takers.setdefault(source.layer, {})
            taker = Taker(name, moments[name], source.bias_column)
            blocks.setdefault(source.block.name, []).append(taker)
            outputs[source.layer] = min(out, outputs.get(source.layer, out))
    return [
        Recorder(layer, rule, takers[layer], outputs[layer], plan, draws, watch, uses)
        for layer, rule in rules.items()
    ]


def _expected(batches: Any, limit: int | None, first: Any) -> int | None:
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
