"""Which batches, and which rows of them, count at each layer in one pass over a task's data.

Sums over all rows would cost more than the pass itself, and few rows tell as much. Unless all rows
are asked for, a layer takes all of them only while they are few. Else it takes about `enough(d)`
rows, up to four times that where they come cheap beside the layer's own work, spread evenly over
the pass: out of every group of up to eight batches one at random, and of that one a random sample
of the rows. Each row counts by the inverse of its chance to be taken, so that sums are unbiased in
whatever order the data comes. Batches that no layer takes are not run at all. A layer that gets few
rows of a batch, beside others that get plenty, makes do with those of the recorded batches.

Embeddings with tokens that not every batch has count all of them, as rare ones matter. Where they
are fed by the batch itself, that needs no pass either.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils.hooks import RemovableHandle

from conceptors.layers import Call, Draws, Rows, Rule, Sample, SecondMoment
from conceptors.shield.remember.moments import Moments, SketchedMoments
from conceptors.shield.remember.uses import Uses

_GROUP = 8  # batches at most, of which one is recorded
_PLENTY = 16  # times what they need, for some layers: others do not ask for more batches then
_SPREAD = 16  # batches recorded at least, where there are so many
_SHARE = 0.1  # of a layer's own work is spent on second moments, beyond `enough` rows
_MOST = 4  # times `enough` rows are as good as all
_FIRST = 4096  # rows of the first batch at least: some layers are reached once
_FEWEST = 64  # rows of a batch that is recorded
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)  # what they count needs no output


def enough(dim: int) -> int:
    """So many rows of `dim` numbers are taken in any case, if there are."""
    return max(16384, 8 * dim)


class SamplingPlan:
    """Which batches are recorded: the same ones by all layers; `all_rows`: all of them."""

    def __init__(self, all_rows: bool, seed: int) -> None:
        self.all_rows = all_rows
        self.batches: int | None = None  # that will come, if that is known; a guess does no harm
        self.batch = -1  # the current one
        self.group = 1  # so many batches are represented by one of them
        self.recorded = True  # whether the current one is it
        self._random = random.Random(seed)
        self._chosen, self._end = 0, 0

    def begin(self, batch: int, filled: list[float]) -> None:
        """Come to the next batch; layers have `filled` times as many rows in sight as they need."""
        self.batch = batch
        if batch >= self._end:
            self.group = self._size(batch, filled)
            self._end = batch + self.group
            self._chosen = batch + self._random.randrange(self.group)
        self.recorded = batch == self._chosen

    def _size(self, batch: int, filled: list[float]) -> int:
        known = [times for times in filled if math.isfinite(times)]
        if self.all_rows or not batch:
            return 1
        least = min(known, default=_GROUP)
        if max(known, default=0.0) >= _PLENTY:
            least = _GROUP
        if least < 1:
            return 1
        come = batch if self.batches is None else self.batches
        least = _GROUP if self.batches is None else least
        return max(1, min(_GROUP, come // _SPREAD, int(least)))


class Taker(NamedTuple):
    """A site that takes the rows of a block, with the bias in that column."""

    site: str
    moments: Moments | SketchedMoments
    bias_column: int | None


class Recorder:
    """Gives the rows of one layer's blocks to the sites that they belong to."""

    def __init__(
        self,
        layer: nn.Module,
        rule: Rule,
        takers: Mapping[str, list[Taker]],
        outputs: int,
        plan: SamplingPlan,
        draws: Draws,
        watch: Watch,
        uses: Uses,
    ) -> None:
        self._layer, self._rule, self._takers = layer, rule, takers
        self._outputs, self._plan, self._watch, self._uses = outputs, plan, watch, uses
        self._known = [block.name for block in rule.blocks(layer)]
        self._missing = set(takers)  # blocks that the rule has given no rows of
        self._asked = False
        self._sample = Sample(self._cap, draws)
        self._handle: RemovableHandle | None = None
        self._first: int | None = None  # the batch in which the layer was reached first
        self._came: dict[tuple[str, int], float] = {}  # rows of (block, d) in that batch
        self._taken: dict[tuple[str, int], int] = {}  # and so far
        self._closed = False  # its sums have a closed form, cheap enough for every batch
        self._seen: list[Any] = []  # what the layer was called with in this batch, if closed
        self._often = False  # every token comes in every batch: a sample will do
        self._fitting: set[Any] | None = None  # parts of batches that were what entered the layer
        self._forms: set[object] = set()  # of these parts

    def begin(self, batch: Any) -> bool:
        """Prepare for a batch; returns whether the model has to run on it."""
        self._seen = []
        every = self._closed and not self._often
        if self._first is None or self._plan.recorded or every:
            if self._handle is None:
                # before any other hook: FSDP takes the weights away in its own
                self._handle = self._layer.register_forward_hook(
                    self._record, with_kwargs=True, prepend=True
                )
            return not every or self._entering(batch) is None
        self.close()
        return False

    def _entering(self, batch: Any) -> Tensor | None:
        """The part of a batch that enters the layer as it is, if one of that form has done so."""
        key = next(iter(self._fitting)) if self._fitting and len(self._fitting) == 1 else None
        part = leaves(batch).get(key)
        return part if isinstance(part, Tensor) and _form(part) in self._forms else None

    def compare(self, batch: Any) -> None:
        """After a pass: which parts of the batch entered the layer as they are."""
        if not self._closed or self._handle is None:
            return
        same = {
            key
            for key, leaf in leaves(batch).items()
            if len(self._seen) == 1 and _same(leaf, self._seen[0])
        }
        self._fitting = same if self._fitting is None else self._fitting & same
        self._forms |= {_form(self._seen[0])} if self._fitting else set()

    def take(self, batch: Any) -> None:
        """Instead of a pass: what enters the layer is known to be a part of the batch."""
        part = self._entering(batch)
        if part is None or self._handle is None:
            return
        device = next(self._layer.parameters()).device
        self._record(self._layer, (part.to(device),), {}, None)

    def close(self) -> None:
        """Take the hook off the layer."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _record(self, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._uses.is_read(layer, args):
            return
        if any(is_functorch_wrapped_tensor(x) for x in args if isinstance(x, Tensor)):
            raise ValueError(
                f"{self._words()} is called under torch.func.vmap or another transform, where its "
                f"inputs cannot be read; nothing was remembered. Give remember a feed(model, "
                f"batch) that calls the model on whole batches"
            )
        if self._first is None:
            self._first = self._plan.batch
        scale = self._scale()
        outer = Call(args, kwargs, output)
        for call in self._uses.calls(layer, outer):
            self._take(call, call is outer, scale)

    def _take(self, call: Call, is_outer: bool, scale: int) -> None:
        layer = self._layer
        for block, rows in self._rows(call):
            takers = self._takers.get(block)
            if not takers:
                continue
            self._count(block, rows)
            if isinstance(rows, SecondMoment):
                plain = is_outer and len(call.args) == 1 and not call.kwargs
                alone = plain and isinstance(layer, _EMBEDDINGS)
                self._seen.append(call.args[0] if alone else None)
            values = rows.total if isinstance(rows, SecondMoment) else rows.values
            self._watch.note(takers[0].site, self._plan.batch, values)
            counted = rows if scale == 1 else _times(rows, scale)
            try:
                for taker in takers:
                    taker.moments.add(counted, taker.bias_column)
            except ValueError as error:
                raise ValueError(f"{self._words()}: {error}; nothing was remembered") from error

    def _rows(self, call: Call) -> Iterator[tuple[str, Rows | SecondMoment]]:
        """What the rule gives, checked; what goes wrong there names the layer and the rule."""
        self._asked = True
        try:
            for block, rows in self._rule.rows(self._layer, call, self._sample):
                if block not in self._known:
                    raise ValueError(f"it gave rows of {block!r}; its blocks are {self._known}")
                for taker in self._takers.get(block, ()):
                    _check_shape(rows, taker.moments)
                self._missing.discard(block)
                yield block, rows
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ValueError(
                f"{self._words()} failed with {type(error).__name__}: {error}; nothing was "
                f"remembered"
            ) from error

    def _words(self) -> str:
        sites = dict.fromkeys(t.site for some in self._takers.values() for t in some)
        kinds = f"{type(self._layer).__name__}, rule {type(self._rule).__name__}"
        return f"layer {', '.join(sites)} ({kinds})"

    def check(self) -> None:
        """After all passes: whether a layer that was called has given rows of all its blocks."""
        if self._asked and self._missing:
            raise ValueError(
                f"{self._words()} gave no rows of its block {sorted(self._missing)[0]!r}, which "
                f"would not be protected: let `rows` of the rule yield them; nothing was remembered"
            )

    def _scale(self) -> int:
        """How many batches this one stands for; the first one only for itself, as it is certain."""
        alone = self._plan.batch == self._first or (self._closed and not self._often)
        return 1 if alone else self._plan.group

    def _count(self, block: str, rows: Rows | SecondMoment) -> None:
        if isinstance(rows, SecondMoment):
            self._closed = True
            if self._plan.batch == self._first:
                self._often = bool((rows.total > 0).all())
            return
        count, dim = rows.values.shape[1:]
        if count:
            key = (block, dim)
            self._taken[key] = self._taken.get(key, 0) + count
            if self._plan.batch == self._first:
                self._came[key] = self._came.get(key, 0.0) + count * rows.weight

    def filled(self) -> float:
        """How many times enough rows the layer has in sight: in the whole pass, or so far."""
        batches = self._plan.batches
        counts = self._taken if batches is None else self._came
        times = 1 if batches is None else batches
        return min((times * n / enough(dim) for (_, dim), n in counts.items()), default=math.inf)

    def _cap(self, count: int, dim: int) -> int | None:
        """How many of `count` rows of `dim` numbers are used; None for all."""
        if self._plan.all_rows:
            return None
        batches = self._plan.batches or max(_SPREAD, 2 * self._plan.batch)
        least = enough(dim)
        cheap = _SHARE * batches * count * self._outputs / max(1, dim)
        wanted = self._scale() * min(max(cheap, least), _MOST * least) / batches
        if self._plan.batches is None and (not self._taken or self.filled() < 1):
            wanted = max(wanted, least)
        if self._plan.batch == self._first:
            wanted = max(wanted, _FIRST)
        wanted = max(wanted, _FEWEST)
        return None if wanted > 0.75 * count else math.ceil(wanted)


def _check_shape(rows: Rows | SecondMoment, moments: Moments | SketchedMoments) -> None:
    """Whether rows are `[g, n, d]` for these sums, or moments `[g, d, d]`."""
    groups, dim = moments.groups, moments.dim
    if isinstance(rows, SecondMoment):
        if rows.total.shape != (groups, dim, dim):
            raise ValueError(
                f"second moments must have shape {[groups, dim, dim]}, got {list(rows.total.shape)}"
            )
        return
    dim -= moments.biases
    shape = rows.values.shape
    if len(shape) != 3 or (shape[0], shape[2]) != (groups, dim):
        raise ValueError(f"rows must have shape [{groups}, n, {dim}], got {list(shape)}")


class Watch:
    """Looks out for rows that are not finite, without waiting for the device at every batch."""

    def __init__(self) -> None:
        self._noted: list[tuple[str, int, Tensor]] = []

    def note(self, site: str, batch: int, values: Tensor) -> None:
        dtype = torch.float32 if values.device.type == "mps" else torch.float64
        self._noted.append((site, batch, values.sum(dtype=dtype)))

    def check(self) -> None:
        """Wait for the device.

        Raises:
            ValueError: rows were not finite; names the layer and the batch.
        """
        noted, self._noted = self._noted, []
        good: dict[int, bool] = {}
        for device in {total.device for _, _, total in noted}:
            here = [i for i, (_, _, total) in enumerate(noted) if total.device == device]
            found = torch.stack([noted[i][2] for i in here]).isfinite().tolist()
            good.update(zip(here, found))
        bad = [noted[i][:2] for i in range(len(noted)) if not good[i]]
        if bad:
            site, batch = bad[0]
            others = len({name for name, when in bad if when == batch} - {site})
            raise ValueError(
                f"NaN or infinite activations enter {site!r}"
                f"{f' (and {others} more layers)' if others else ''} in batch {batch}; "
                f"nothing was remembered. Check that batch, or whether training diverged"
            )


def _times(rows: Rows | SecondMoment, scale: int) -> Rows | SecondMoment:
    """The same rows, each counting so many times more."""
    if isinstance(rows, SecondMoment):
        return SecondMoment(rows.total * scale, rows.weight * scale)
    return rows._replace(weight=rows.weight * scale)


def leaves(batch: Any) -> dict[Any, Any]:
    """The parts of a batch, by name or number."""
    if isinstance(batch, Mapping):
        return dict(batch)
    return dict(enumerate(batch)) if isinstance(batch, (tuple, list)) else {"": batch}


def _form(part: Tensor) -> object:
    """What a model may treat in one way: it could cut longer ones, say."""
    return part.dtype, part.shape[1:]


def _same(leaf: Any, x: Any) -> bool:
    """Whether two tensors are the same memory: equal values could be chance."""
    return (
        isinstance(leaf, Tensor)
        and isinstance(x, Tensor)
        and leaf.device == x.device
        and (leaf.shape, leaf.stride(), leaf.dtype) == (x.shape, x.stride(), x.dtype)
        and leaf.data_ptr() == x.data_ptr()
    )
