"""One pass over a task's data, which computes the second moments of every block's inputs."""

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
from conceptors.shield.remember.recorder import FiniteCheck, Recorder, SamplingPlan, Taker
from conceptors.shield.remember.uses import StrayUse, WeightUses, refuse

_CHECK = 64  # batches between checks that wait for the device


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
    strays: Callable[[Iterable[StrayUse]], None] = refuse,
    who: str = "remember",
) -> dict[str, Moments | SketchedMoments]:
    """Collect the moments of all blocks that rows reach.

    The model runs in evaluation mode without gradients. Training flags, random state and hooks are
    restored afterwards, also after an exception.

    Args:
        all_rows: whether to use every row, or a sample (see `recorder`).
        sketch: returns how many directions a layer with so many inputs stores; None for all.
        strays: handles weights that are used where no rule covers them.
        who: the method of `Shield` that needs the moments, for messages.

    Raises:
        ValueError: there is no batch, no row reaches any block, rows are not finite, a rule fails,
            or weights are used where no rule covers them.
    """
    check_batches(batches, who)
    feed = feed or feed_first
    limit = None if limit is None else checks.whole(limit, "limit", 1)
    products = Products()
    moments = {name: _empty(site, sketch, products) for name, site in sites.items()}
    plan, draws, finite = SamplingPlan(all_rows, seed), Draws(seed), FiniteCheck()
    uses = WeightUses(sites, WeightReads(model))
    count = 0
    reduced = dist.is_available() and dist.is_initialized()
    with _together(model, reduced), undisturbed(model), ExitStack() as hooks:
        recorders = _recorders(sites, moments, plan, draws, finite, uses)
        for recorder in recorders:
            hooks.callback(recorder.close)
        for index, batch in enumerate(with_progress(iterate(batches, limit, who), progress, who)):
            if not index:
                plan.batches = expected(batches, limit, batch)
            plan.begin(index, [recorder.filled() for recorder in recorders])
            needs_pass = {recorder.begin(batch) for recorder in recorders}
            if True in needs_pass or reduced:  # sharded models need all processes at every pass
                with uses.watching():
                    feed(model, batch)
                _each(recorders, Recorder.compare, batch)
                draws.renew()
            else:
                _each(recorders, Recorder.take, batch)
            count += 1
            if count % _CHECK == 0:
                finite.check()
        finite.check()
        for recorder in recorders:
            recorder.check()
        strays(uses.stray)
        for m in moments.values():
            m.flush()
    effect = "; nothing was remembered" if who == "remember" else ""
    if not count and not reduced:
        raise ValueError(
            f"{who} got no batches: the loader is empty, or an iterator that was used before"
            f"{effect}. Pass a DataLoader or a list of batches"
        )
    if reduced:
        with _naming_lost_process():
            for m in moments.values():
                m.all_reduce()
    moments = {name: m for name, m in moments.items() if m.weight > 0}
    _check_sums(moments)
    if not moments:
        listed = ", ".join(list(sites)[:5]) + (", ..." if len(sites) > 5 else "")
        raise ValueError(
            f"no rows reached any of {len(sites)} shielded layers ({listed}) in {count} "
            f"batches{effect}. Check that feed(model, batch) calls the model on samples, "
            f"and that some of the layers it uses are neither frozen nor excluded"
        )
    return moments


def _check_sums(moments: Mapping[str, Moments | SketchedMoments]) -> None:
    """Raise ValueError if the squares of a layer's inputs have overflowed."""
    for name, sums in moments.items():
        if not bool(sums.energy().isfinite().all()):
            raise ValueError(
                f"the inputs of layer {name!r} are too large: their squares overflow {sums.dtype}; "
                f"nothing was remembered. Scale the inputs, for example to unit variance"
            )


def _each(recorders: list[Recorder], what: Callable[[Recorder, Any], None], batch: Any) -> None:
    for recorder in recorders:
        what(recorder, batch)


@contextmanager
def _together(model: nn.Module, reduced: bool) -> Iterator[None]:
    """Raise an error on all processes if one fails, so no process waits for it forever."""
    if not reduced:
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    flag = torch.tensor(float(failure is not None), device=next(model.parameters()).device)
    with _naming_lost_process(failure):
        dist.all_reduce(flag, dist.ReduceOp.MAX)
    if failure is not None:
        raise failure
    if bool(flag):
        raise ValueError(
            "remember failed on another process; nothing was remembered. See the error there"
        )


@contextmanager
def _naming_lost_process(before: Exception | None = None) -> Iterator[None]:
    """Explain the error when another process is lost; `before` is an earlier failure."""
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
        is_vocabulary = site.block.layout == "tokens"
        return Moments(groups, dim, len(site.biases), like, products, presence=is_vocabulary)
    return SketchedMoments(dim, rank, len(site.biases), like)


def _recorders(
    sites: Mapping[str, WeightBlock],
    moments: Mapping[str, Moments | SketchedMoments],
    plan: SamplingPlan,
    draws: Draws,
    finite: FiniteCheck,
    uses: WeightUses,
) -> list[Recorder]:
    """Create a recorder for every layer of a block."""
    rules: dict[nn.Module, Rule] = {}
    takers: dict[nn.Module, dict[str, list[Taker]]] = {}
    outputs: dict[nn.Module, int] = {}
    bare: list[Recorder] = []
    for name, site in sites.items():
        out = site.matrix(site.parameters).shape[1]
        for source in site.sources:
            if isinstance(source.rule, BareRule):
                taker = Taker(name, moments[name], None)
                recorder = BareRecorder(
                    source.layer, source.rule, {"": [taker]}, 1, plan, draws, finite, uses
                )
                uses.bare.add(site.parameters[0], recorder, source.rule.is_vector)
                bare.append(recorder)
                continue
            rules[source.layer] = source.rule
            blocks = takers.setdefault(source.layer, {})
            taker = Taker(name, moments[name], source.bias_column)
            blocks.setdefault(source.block.name, []).append(taker)
            outputs[source.layer] = min(out, outputs.get(source.layer, out))
    return bare + [
        Recorder(layer, rule, takers[layer], outputs[layer], plan, draws, finite, uses)
        for layer, rule in rules.items()
    ]
