"""One pass over a task's data, which computes the second moments of every block's inputs.

Every batch runs through the model. With `all_rows`, each layer uses all of its rows. Otherwise it
uses a random sample of each batch, about `enough(d)` rows in all, or all rows if there are fewer.
Each row is weighted by the inverse of its probability, so sums are unbiased for any order of the
data. Embeddings count all tokens. Padding does not count: where a batch has an `attention_mask`
`[n, t]` with zeros, inputs `[n, t, ...]` and `[n · t, ...]` are read at its ones. A bare parameter
has no rows; it is used by a task, or it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional

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
from conceptors._internal.precision import exactly, full, tensor_cores
from conceptors.algebra.conceptor import Conceptor
from conceptors.layers import Call, Draws, Rows, Rule, Sample, SecondMoment
from conceptors.layers.bare import is_bare
from conceptors.layers.dora import WeightReads
from conceptors.moments import Correlation, FrequentDirections
from conceptors.moments.correlation import add_products_
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.distributed import failing_together, is_distributed, naming_lost_process
from conceptors.shield.uses import WeightUses, refuse

_CHECK = 64  # batches between checks that wait for the device
_BUFFERED = 4096  # rows that are collected before their products are computed
_FIRST = 4096  # the fewest rows of the first batch: some layers are reached once
_FEWEST = 64  # the fewest rows of a batch
_HALF = (torch.float16, torch.bfloat16)


def enough(dim: int) -> int:
    """Return how many rows of `dim` numbers are always used, if there are as many."""
    return max(16384, 8 * dim)


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
    strays: Callable[[Mapping[str, str]], None] = refuse,
    who: str = "remember",
) -> dict[str, Moments]:
    """Collect the moments of all blocks that rows reach.

    Training flags, random state and hooks are restored afterwards, also after an exception.

    Args:
        sketch: returns how many directions a layer with so many inputs stores; None for all.
        strays: handles weights that are used where no rule covers them; see `WeightUses.stray`.
        who: the method that errors name.

    Raises:
        ValueError: there is no batch, no row reaches any block, rows are not finite, a rule fails,
            or weights are used where no rule covers them.
    """
    check_batches(batches, who)
    feed = feed or feed_first
    limit = None if limit is None else checks.whole(limit, "limit", 1)
    run = Pass(all_rows, seed, "; nothing was remembered" if who == "remember" else "")
    uses, count = WeightUses(sites, WeightReads(model)), 0
    moments = {name: Moments(site, sketch) for name, site in sites.items()}
    layers = _layers(sites, moments, run, uses)
    device = next(model.parameters()).device
    with failing_together(device), undisturbed(model), ExitStack() as hooks:
        for handle in uses.observe():
            hooks.callback(handle.remove)
        for layer in layers:
            hook = layer.layer.register_forward_hook  # the first: FSDP frees weights in its own
            hooks.callback(hook(layer.record, with_kwargs=True, prepend=True).remove)
        for batch in with_progress(iterate(batches, limit, who), progress, who):
            if not count:
                run.batches = expected(batches, limit, batch)
            run.begin(count, mask_of(model, batch))
            with uses.watching():
                try:
                    feed(model, batch)
                except Exception as error:
                    error.add_note(
                        f"{who} stopped at batch {count}: compare it with a training batch"
                    )
                    raise
            count += 1
        run.check_finite()
        for layer in layers:
            layer.check()
        strays(uses.stray)
        for name in uses.used:
            moments[name].add(SecondMoment(torch.ones(1, 1, 1), 1.0), None)
        for sums in moments.values():
            sums.flush()
    if not count and not is_distributed():
        raise ValueError(
            f"{who} got no batches: the loader is empty, or an iterator that was used before"
            f"{run.effect}. Pass a DataLoader or a list of batches"
        )
    with naming_lost_process():
        for sums in moments.values():
            sums.sums.all_reduce()
    reached = {name: sums for name, sums in moments.items() if sums.sums.weight > 0}
    if not reached:
        listed = ", ".join(list(sites)[:5]) + (", ..." if len(sites) > 5 else "")
        raise ValueError(
            f"no rows reached any of {len(sites)} shielded layers ({listed}) in {count} batches"
            f"{run.effect}. Check that feed(model, batch) calls the model on samples, "
            f"and that some of the layers it uses are neither frozen nor excluded"
        )
    large = [name for name, sums in reached.items() if not bool(sums.energy().isfinite().all())]
    if large:
        raise ValueError(
            f"the inputs of layer {large[0]!r} are too large: their squares overflow{run.effect}. "
            f"Scale the inputs, for example to unit variance"
        )
    return reached


class Pass:
    """The state of one pass: which batch runs, which rows are drawn, whether they are finite.

    `effect` ends the first sentence of errors: what did not happen because of them.
    """

    def __init__(self, all_rows: bool, seed: int, effect: str) -> None:
        self.all_rows, self.draws, self.effect = all_rows, Draws(seed), effect
        self.batch = 0
        self.batches: int | None = None  # if known; may be a guess
        self._noted: list[tuple[str, int, Tensor]] = []

    def begin(self, batch: int, mask: Tensor | None) -> None:
        """Begin the next batch, whose mask is 0 for padding."""
        self.batch = batch
        self.draws.renew(mask)
        if batch and batch % _CHECK == 0:
            self.check_finite()

    def note(self, site: str, values: Tensor) -> None:
        """Note rows for `check_finite`, which waits for the device."""
        dtype = torch.float32 if values.device.type == "mps" else torch.float64
        self._noted.append((site, self.batch, values.sum(dtype=dtype)))

    def check_finite(self) -> None:
        """Raise ValueError with the layer and the batch if noted rows are not finite."""
        noted, self._noted = self._noted, []
        if not noted:
            return
        device = noted[0][2].device
        finite = torch.stack([total.to(device) for *_, total in noted]).isfinite().tolist()
        for (site, batch, _), is_finite in zip(noted, finite):
            if not is_finite:
                raise ValueError(
                    f"NaN or infinite activations enter layer {site!r} in batch {batch}"
                    f"{self.effect}. Check that batch, and the model's weights"
                )


def mask_of(model: nn.Module, batch: Any) -> Tensor | None:
    """Return the `attention_mask` `[n, t]` of a batch, if it is 0 for padding and 1 elsewhere.

    Masks of encoder-decoders are not returned: they do not apply to the decoder.
    """
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return None
    configs = (getattr(module, "config", None) for module in model.modules())
    if any(getattr(config, "is_encoder_decoder", False) for config in configs):
        return None
    is_padding = mask == 0
    return mask if is_padding.any() and (is_padding | (mask == 1)).all() else None


@exactly()
def products(rows: Tensor) -> Tensor:
    """Compute XᵀX `[g, d, d]` of rows `[g, n, d]`, in float64.

    Products of half-precision numbers are exact in float32, also on tensor cores (TF32), and are
    summed in float32.
    """
    wide = rows.float() if rows.dtype in _HALF else rows.double()
    if rows.dtype in _HALF and rows.is_cuda:
        with tensor_cores():
            return wide.mT @ wide
    total = wide.new_zeros(len(wide), wide.shape[-1], wide.shape[-1])
    one = wide.squeeze(0)  # a single matrix is faster than a batch of one
    add_products_(total.squeeze(0), one, one)
    return total


class Moments:
    """Σ w [x; e] [x; e]ᵀ of rows `[g, n, d]`, with k bias columns; for wide layers as a sketch.

    e marks the bias of a row (all zero for a layer without bias). Rows are buffered until there
    are at least 4096 and as many as columns; call `flush` before reading.

    Attributes:
        sums: `[g, d + k, d + k]`, or the sketch, in float64.
        coarsest: the largest rounding error of the rows.
    """

    def __init__(self, site: WeightBlock, sketch: Callable[[int], int | None]) -> None:
        self.groups, self.dim = site.size
        self.biases, self.coarsest = len(site.biases), 0.0
        self.is_bare = is_bare(site.block)
        self._counts_tokens = site.block.layout == "tokens"
        self._buffered: dict[float, list[Tensor]] = {}  # rows by weight
        self._count = 0  # of buffered rows
        device = site.parameters[0].device
        rank = sketch(self.dim) if self.groups == 1 else None
        self.sums: Correlation | FrequentDirections
        if rank is None or rank >= self.dim:
            self.sums = Correlation(self.dim, groups=self.groups, device=device)
        else:
            self.sums = FrequentDirections(self.dim, rank, device=device)

    @property
    def sketch(self) -> FrequentDirections | None:
        """The sketch of a wide layer."""
        return self.sums if isinstance(self.sums, FrequentDirections) else None

    @property
    def dropped(self) -> float:
        """The largest error of a direction relative to the largest one."""
        if self.sketch is None:
            return 0.0
        top = float(torch.linalg.matrix_norm(self.correlation(), 2))
        return self.sketch.error_bound / max(top, 1e-300)

    def add(self, rows: Rows | SecondMoment, bias_column: int | None) -> None:
        """Add the rows of one call."""
        has_rows, shape = isinstance(rows, Rows), list(rows[0].shape)
        inner = self.dim - self.biases if has_rows else self.dim
        if len(shape) != 3 or shape[::2] != [self.groups, inner]:
            what, count = ("rows", "n") if has_rows else ("second moments", inner)
            wanted = f"[{self.groups}, {count}, {inner}]"
            raise ValueError(f"{what} must have shape {wanted}, got {shape}")
        if isinstance(rows, SecondMoment):
            if isinstance(self.sums, FrequentDirections):
                raise TypeError("a rule for a wide layer must yield rows, not second moments")
            self.sums.add(rows.total, rows.weight)
            return
        values = functional.pad(rows.values, (0, self.biases))  # a copy
        if bias_column is not None:
            values[..., inner + bias_column] = 1
        self.coarsest = max(self.coarsest, rounding(values.dtype))
        self._buffered.setdefault(rows.weight, []).append(values)
        self._count += shape[1]
        if self.sketch is not None or self._count >= max(_BUFFERED, self.dim):
            self.flush()

    def flush(self) -> None:
        """Add the buffered rows to the sums."""
        for weight, chunks in self._buffered.items():
            rows = torch.cat(chunks, 1)
            count = rows.shape[1]
            if isinstance(self.sums, Correlation):
                self.sums.add(products(rows) * weight, count * weight)
            else:
                samples = full(rows[0])
                self.sums.update(samples, samples.new_full((count,), weight))
        self._buffered, self._count = {}, 0

    def correlation(self) -> Tensor:
        """Compute R `[g, d, d]`; of tokens, 1 for each that occurred; of a sketch Bᵀ B, B Bᵀ."""
        if isinstance(self.sums, FrequentDirections):
            return (self.sums.rows() @ self.sums.rows().mT)[None]
        return (self.sums.sum > 0).double() if self._counts_tokens else self.sums.matrix()

    def conceptor(self, aperture: float | Tensor) -> Conceptor:
        """Compute the conceptors `[g]` of R."""
        if isinstance(self.sums, FrequentDirections):
            single = self.sums.conceptor(float(aperture))
            return single.mapped(lambda tensor, _: tensor[None])
        return Conceptor.from_second_moment(self.correlation(), aperture)

    def energy(self) -> Tensor:
        """Compute E|x|² `[g]`, of tokens their frequencies."""
        if isinstance(self.sums, FrequentDirections):
            return self.sums.rows().square().sum()[None]
        return self.sums.sum.diagonal(dim1=-2, dim2=-1).sum(-1) / self.sums.weight

    def output_energy(self, matrix: Tensor) -> Tensor:
        """Compute E|W x|² `[g]` for W `[g, out, d]`."""
        matrix = full(matrix)
        if isinstance(self.sums, FrequentDirections):
            return (matrix[0] @ self.sums.rows().to(matrix).mT).square().sum()[None]
        moment = (self.sums.sum / self.sums.weight).to(matrix)
        return ((matrix @ moment) * matrix).sum((1, 2))


@dataclass
class RowRecorder:
    """Adds the rows of one layer's calls to the moments of its blocks.

    Attributes:
        takers: by block, the name of its site, its moments, and the column of the layer's bias.
        reached: the blocks with rows so far.
        first: the first batch that reached the layer.
    """

    layer: nn.Module
    rule: Rule
    run: Pass
    uses: WeightUses
    takers: dict[str, list[tuple[str, Moments, int | None]]] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    first: int | None = None

    def record(self, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Add the rows of a call of the layer."""
        if self.uses.is_read(layer, args):
            return
        if any(is_functorch_wrapped_tensor(x) for x in args if isinstance(x, Tensor)):
            raise ValueError(
                f"{self._description()} is called under torch.func.vmap or another transform, "
                f"where its inputs cannot be read{self.run.effect}. Pass a feed(model, batch) that "
                f"calls the model on whole batches"
            )
        self.first = self.run.batch if self.first is None else self.first
        try:
            for call in self.uses.calls(layer, Call(args, kwargs, output)):
                self._add(call)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.run.check_finite()  # names the batch
            raise ValueError(
                f"{self._description()} failed with {type(error).__name__}: {error}"
                f"{self.run.effect}"
            ) from error

    def _add(self, call: Call) -> None:
        """Add the rows of one call of the class that the rule is for."""
        names = [block.name for block in self.rule.blocks(self.layer)]
        for block, rows in self.rule.rows(self.layer, call, Sample(self._cap, self.run.draws)):
            if block not in names:
                raise ValueError(f"it gave rows of {block!r}; its blocks are {names}")
            self.reached.add(block)
            for i, (site, moments, bias_column) in enumerate(self.takers.get(block, ())):
                if not i:
                    self.run.note(site, rows[0])
                moments.add(rows, bias_column)

    def _cap(self, count: int, dim: int) -> int | None:
        """Return how many of `count` rows of `dim` numbers are used; None for all."""
        if self.run.all_rows:
            return None
        wanted = enough(dim) / (self.run.batches or self.run.batch + 1)
        wanted = max(wanted, _FIRST if self.run.batch == self.first else _FEWEST)
        return None if wanted > 0.75 * count else math.ceil(wanted)

    def check(self) -> None:
        """Raise ValueError if a layer was called, but its rule gave no rows of a block."""
        missing = sorted(self.takers.keys() - self.reached)
        if self.first is not None and missing:
            raise ValueError(
                f"{self._description()} gave no rows of its block {missing[0]!r}, which would not "
                f"be protected{self.run.effect}. Yield them in the rule's `rows`"
            )

    def _description(self) -> str:
        sites = dict.fromkeys(site for takers in self.takers.values() for site, *_ in takers)
        kinds = f"{type(self.layer).__name__}, rule {type(self.rule).__name__}"
        return f"layer {', '.join(sites)} ({kinds})"


def _layers(
    sites: Mapping[str, WeightBlock], moments: Mapping[str, Moments], run: Pass, uses: WeightUses
) -> list[RowRecorder]:
    """Create the recorder of every layer that has a block with rows."""
    layers: dict[nn.Module, RowRecorder] = {}
    for name, site in sites.items():
        for source in () if is_bare(site.block) else site.sources:
            inputs = RowRecorder(source.layer, source.rule, run, uses)
            takers = layers.setdefault(source.layer, inputs).takers.setdefault(
                source.block.name, []
            )
            takers.append((name, moments[name], source.bias_column))
    return list(layers.values())


def rounding(dtype: torch.dtype) -> float:
    """Return the relative mean square of rounding errors in a dtype."""
    return torch.finfo(dtype).eps ** 2 / 24  # errors are uniform in ± eps / 2 · 2^k <= |x|
