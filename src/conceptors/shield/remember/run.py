"""One pass over a task's data: second moments of what enters every site, leaving no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from conceptors._internal import checks
from conceptors._internal.batches import (
    Feed,
    check_batches,
    expected,
    feed_first,
    iterate,
    undisturbed,
    with_progress,
)
from conceptors.layers import Draws, Rule
from conceptors.layers.bare import BareRule, is_bare
from conceptors.layers.dora import WeightReads
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.remember.bare_recorder import BareMoments, BareRecorder
from conceptors.shield.remember.moments import Moments, Products, SketchedMoments
from conceptors.shield.remember.recorder import Recorder, SamplingPlan, Taker, Watch
from conceptors.shield.remember.uses import Use, Uses, refuse

_CHECK = 64  # batches between waits for the device


def collect(
    model: nn.Module,
    sites: Mapping[str, WeightBlock],
    batches: Any,
    *,
    feed: Feed | None,
    limit: int | None,
    all_rows: bool,
    seed: int,
    sketch: Callable[[int], int | None],
    progress: bool,
    strays: Callable[[Iterable[Use]], None] = refuse,
) -> dict[str, Moments | SketchedMoments]:
    """Moments of all sites that rows reached, over the batches.

    `all_rows` uses every row, else a sample (see `recorder`). `sketch` gives the number of
    directions to store of a layer with so many inputs (None for all), and `strays` handles weights
    that are used where no rule covers it.

    The model runs in evaluation mode without gradients; training flags, random state and hooks
    are as before afterwards, also after an exception.

    Raises:
        ValueError: no batch, no row reached any site, rows that are not finite, a rule that fails,
            or weights that are used where no rule covers it.
    """
    check_batches(batches, "remember")
    feed = feed or feed_first
    limit = None if limit is None else checks.whole(limit, "limit", 1)
    products = Products()
    moments = {name: _empty(site, sketch, products) for name, site in sites.items()}
    plan, draws, watch, uses = (
        SamplingPlan(all_rows, seed),
        Draws(seed),
        Watch(),
        Uses(sites, WeightReads(model)),
    )
    seen = 0
    reduced = dist.is_available() and dist.is_initialized()
    with _together(model, reduced), undisturbed(model), ExitStack() as hooks:
        recorders = _recorders(sites, moments, plan, draws, watch, uses)
        for recorder in recorders:
            hooks.callback(recorder.close)
        for index, batch in enumerate(
            with_progress(iterate(batches, limit, "remember"), progress, "remember")
        ):
            if not index:
                plan.batches = expected(batches, limit, batch)
            plan.begin(index, [recorder.filled() for recorder in recorders])
            wanted = {recorder.begin(batch) for recorder in recorders}
            if True in wanted or reduced:  # sharded models need all processes at every pass
                with uses.watching():
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
        with _reaching_all():
            for m in moments.values():
                m.all_reduce()
    moments = {name: m for name, m in moments.items() if m.weight > 0}
    _check_sums(moments)
    if not moments:
        listed = ", ".join(list(sites)[:5]) + (", ..." if len(sites) > 5 else "")
        raise ValueError(
            f"no rows reached any of {len(sites)} shielded layers ({listed}) in {seen} batches; "
            f"check that feed(model, batch) calls the model on samples, and that not all it uses "
            f"is frozen or excluded; nothing was remembered"
        )
    return moments


def _check_sums(moments: Mapping[str, Moments | SketchedMoments]) -> None:
    """ValueError if the squares of a layer's inputs have overflowed."""
    for name, sums in moments.items():
        if not bool(sums.energy().isfinite().all()):
            raise ValueError(
                f"the inputs of {name!r} are too large: their squares overflow {sums.dtype}. "
                f"Nothing was remembered. Scale the inputs, for example to unit variance"
            )


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
    with _reaching_all(failure):
        dist.all_reduce(flag, dist.ReduceOp.MAX)
    if failure is not None:
        raise failure
    if bool(flag):
        raise ValueError("remember failed on another process; nothing was remembered")


@contextmanager
def _reaching_all(before: Exception | None = None) -> Iterator[None]:
    """Say what it means when others do not answer; `before` is what has failed already."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"remember on rank {dist.get_rank()} lost another process, which was killed or has "
            f"failed; nothing was remembered. Start all processes again from the last checkpoint, "
            f"and call remember again"
        ) from before or error


def _empty(
    site: WeightBlock,
    sketch: Callable[[int], int | None],
    products: Products,
) -> Moments | SketchedMoments:
    groups, dim = site.size
    like = torch.empty(0, dtype=torch.float64, device=site.parameters[0].device)
    if is_bare(site.block):
        return BareMoments(groups, dim, 0, like)
    rank = sketch(dim) if groups == 1 else None
    if rank is None or rank >= dim:
        met = site.block.layout == "tokens"
        return Moments(groups, dim, len(site.biases), like, products, presence=met)
    return SketchedMoments(dim, rank, len(site.biases), like)


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
    bare: list[Recorder] = []
    for name, site in sites.items():
        out = site.matrix(site.parameters).shape[1]
        for source in site.sources:
            if isinstance(source.rule, BareRule):
                own = {"": [Taker(name, moments[name], None)]}
                one = BareRecorder(source.layer, source.rule, own, 1, plan, draws, watch, uses)
                uses.bare.add(site.parameters[0], one, source.rule.is_vector)
                bare.append(one)
                continue
            rules[source.layer] = source.rule
            blocks = takers.setdefault(source.layer, {})
            taker = Taker(name, moments[name], source.bias_column)
            blocks.setdefault(source.block.name, []).append(taker)
            outputs[source.layer] = min(out, outputs.get(source.layer, out))
    return bare + [
        Recorder(layer, rule, takers[layer], outputs[layer], plan, draws, watch, uses)
        for layer, rule in rules.items()
    ]
