"""Record the rows of each layer in one pass over a task's data, or a random sample of them.

Sums over all rows would cost more than the pass itself, and a sample is accurate enough. Without
`all_rows`, a layer uses all rows only if there are few. Otherwise it uses about `enough(d)` rows,
or up to four times as many if they are cheap compared with the layer's own work. They are spread
evenly over the pass: one random batch of every group of up to eight batches is recorded, and a
random sample of its rows is used. Each row is weighted by the inverse of its probability, so sums
are unbiased for any order of the data. Batches that no layer records are not passed through the
model. A layer with few rows per batch, beside others with plenty, uses those of recorded batches.

Embeddings count the tokens of all batches if some batches lack some tokens, because rare tokens
matter. If tokens are an element of the batch, counting them needs no pass.
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
from conceptors.shield.remember.uses import WeightUses

_GROUP = 8  # the most batches of which only one is recorded
_PLENTY = 16  # if a layer has this many times enough rows, others need no more batches
_SPREAD = 16  # the fewest recorded batches, if there are as many
_SHARE = 0.1  # of a layer's own work, for second moments beyond `enough` rows
_MOST = 4  # times `enough` rows are as good as all rows
_FIRST = 4096  # the fewest rows of the first batch: some layers are reached once
_FEWEST = 64  # the fewest rows of a recorded batch
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)  # counting their tokens needs no output


def enough(dim: int) -> int:
    """Return how many rows of `dim` numbers are always used, if there are as many."""
    return max(16384, 8 * dim)


class SamplingPlan:
    """Choose the batches that all layers record; with `all_rows`, all batches."""

    def __init__(self, all_rows: bool, seed: int) -> None:
        self.all_rows = all_rows
        self.batches: int | None = None  # the number of batches, if known; may be a guess
        self.batch = -1  # the current batch
        self.group = 1  # the number of batches that a recorded batch represents
        self.recorded = True  # whether the current batch is recorded
        self._random = random.Random(seed)
        self._chosen, self._end = 0, 0

    def begin(self, batch: int, filled: list[float]) -> None:
        """Begin the next batch; layers expect `filled` times as many rows as they need."""
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
        expected = batch if self.batches is None else self.batches
        least = _GROUP if self.batches is None else least
        return max(1, min(_GROUP, expected // _SPREAD, int(least)))


class Taker(NamedTuple):
    """The moments that receive the rows of a block, with the bias in one column."""

    site: str
    moments: Moments | SketchedMoments
    bias_column: int | None


class Recorder:
    """Add the rows of one layer's blocks to their moments."""

    def __init__(
        self,
        layer: nn.Module,
        rule: Rule,
        takers: Mapping[str, list[Taker]],
        outputs: int,
        plan: SamplingPlan,
        draws: Draws,
        finite: FiniteCheck,
        uses: WeightUses,
    ) -> None:
        self._layer, self._rule, self._takers = layer, rule, takers
        self._outputs, self._plan, self._finite, self._uses = outputs, plan, finite, uses
        self._blocks = [block.name for block in rule.blocks(layer)]
        self._missing = set(takers)  # blocks without rows so far
        self._is_called = False
        self._sample = Sample(self._cap, draws)
        self._handle: RemovableHandle | None = None
        self._first: int | None = None  # the first batch that reached the layer
        self._first_counts: dict[tuple[str, int], float] = {}  # rows of (block, d) in that batch
        self._counts: dict[tuple[str, int], int] = {}  # rows of (block, d) so far
        self._counts_tokens = False  # its sums have a closed form, cheap enough for every batch
        self._inputs: list[Any] = []  # the layer's inputs in this batch, if it counts tokens
        self._has_all_tokens = False  # every token occurs in every batch, so a sample suffices
        self._entries: set[Any] | None = None  # keys of batches that are the layer's input
        self._formats: set[object] = set()  # of these inputs

    def begin(self, batch: Any) -> bool:
        """Begin a batch, and return whether the model has to run on it."""
        self._inputs = []
        every = self._counts_tokens and not self._has_all_tokens
        if self._first is None or self._plan.recorded or every:
            if self._handle is None:
                # first of all hooks: FSDP frees the weights in its own
                self._handle = self._layer.register_forward_hook(
                    self._record, with_kwargs=True, prepend=True
                )
            return not every or self._token_input(batch) is None
        self.close()
        return False

    def _token_input(self, batch: Any) -> Tensor | None:
        """Return the element of a batch that is the layer's input, if its format is known."""
        key = next(iter(self._entries)) if self._entries and len(self._entries) == 1 else None
        element = elements(batch).get(key)
        return (
            element if isinstance(element, Tensor) and _format(element) in self._formats else None
        )

    def compare(self, batch: Any) -> None:
        """Find the elements of the batch that were the layer's input, after a pass."""
        if not self._counts_tokens or self._handle is None:
            return
        keys = {
            key
            for key, element in elements(batch).items()
            if len(self._inputs) == 1 and _is_same_memory(element, self._inputs[0])
        }
        self._entries = keys if self._entries is None else self._entries & keys
        self._formats |= {_format(self._inputs[0])} if self._entries else set()

    def take(self, batch: Any) -> None:
        """Record the element of the batch that is the layer's input, without a pass."""
        tokens = self._token_input(batch)
        if tokens is None or self._handle is None:
            return
        device = next(self._layer.parameters()).device
        self._record(self._layer, (tokens.to(device),), {}, None)

    def close(self) -> None:
        """Remove the hook from the layer."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _record(self, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._uses.is_read(layer, args):
            return
        if any(is_functorch_wrapped_tensor(x) for x in args if isinstance(x, Tensor)):
            raise ValueError(
                f"{self._description()} is called under torch.func.vmap or another transform, "
                f"where its inputs cannot be read; nothing was remembered. Pass remember a "
                f"feed(model, batch) that calls the model on whole batches"
            )
        if self._first is None:
            self._first = self._plan.batch
        scale = self._scale()
        outer = Call(args, kwargs, output)
        for call in self._uses.calls(layer, outer):
            self._add_rows(call, call is outer, scale)

    def _add_rows(self, call: Call, is_outer: bool, scale: int) -> None:
        layer = self._layer
        for block, rows in self._rows(call):
            takers = self._takers.get(block)
            if not takers:
                continue
            self._count(block, rows)
            if isinstance(rows, SecondMoment):
                is_plain = is_outer and len(call.args) == 1 and not call.kwargs
                is_lookup = is_plain and isinstance(layer, _EMBEDDINGS)
                self._inputs.append(call.args[0] if is_lookup else None)
            values = rows.total if isinstance(rows, SecondMoment) else rows.values
            self._finite.note(takers[0].site, self._plan.batch, values)
            weighted = rows if scale == 1 else _times(rows, scale)
            try:
                for taker in takers:
                    taker.moments.add(weighted, taker.bias_column)
            except ValueError as error:
                raise ValueError(
                    f"{self._description()}: {error}; nothing was remembered"
                ) from error

    def _rows(self, call: Call) -> Iterator[tuple[str, Rows | SecondMoment]]:
        """Yield the rows of the rule; errors name the layer and the rule."""
        self._is_called = True
        try:
            for block, rows in self._rule.rows(self._layer, call, self._sample):
                if block not in self._blocks:
                    raise ValueError(f"it gave rows of {block!r}; its blocks are {self._blocks}")
                for taker in self._takers.get(block, ()):
                    _check_shape(rows, taker.moments)
                self._missing.discard(block)
                yield block, rows
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ValueError(
                f"{self._description()} failed with {type(error).__name__}: {error}; nothing was "
                f"remembered"
            ) from error

    def _description(self) -> str:
        sites = dict.fromkeys(t.site for takers in self._takers.values() for t in takers)
        kinds = f"{type(self._layer).__name__}, rule {type(self._rule).__name__}"
        return f"layer {', '.join(sites)} ({kinds})"

    def check(self) -> None:
        """Raise ValueError if a layer was called, but its rule gave no rows of a block."""
        if self._is_called and self._missing:
            raise ValueError(
                f"{self._description()} gave no rows of its block {sorted(self._missing)[0]!r}, "
                f"which would not be protected; nothing was remembered. Yield them in the rule's "
                f"`rows`"
            )

    def _scale(self) -> int:
        """Return how many batches the current one represents; the first represents only itself."""
        counts_all = self._counts_tokens and not self._has_all_tokens
        return 1 if counts_all or self._plan.batch == self._first else self._plan.group

    def _count(self, block: str, rows: Rows | SecondMoment) -> None:
        if isinstance(rows, SecondMoment):
            self._counts_tokens = True
            if self._plan.batch == self._first:
                self._has_all_tokens = bool((rows.total > 0).all())
            return
        count, dim = rows.values.shape[1:]
        if count:
            key = (block, dim)
            self._counts[key] = self._counts.get(key, 0) + count
            if self._plan.batch == self._first:
                self._first_counts[key] = self._first_counts.get(key, 0.0) + count * rows.weight

    def filled(self) -> float:
        """Return how many times enough rows the layer expects in the pass, or has so far."""
        batches = self._plan.batches
        counts = self._counts if batches is None else self._first_counts
        times = 1 if batches is None else batches
        return min((times * n / enough(dim) for (_, dim), n in counts.items()), default=math.inf)

    def _cap(self, count: int, dim: int) -> int | None:
        """Return how many of `count` rows of `dim` numbers are used; None for all."""
        if self._plan.all_rows:
            return None
        batches = self._plan.batches or max(_SPREAD, 2 * self._plan.batch)
        least = enough(dim)
        cheap = _SHARE * batches * count * self._outputs / max(1, dim)
        wanted = self._scale() * min(max(cheap, least), _MOST * least) / batches
        if self._plan.batches is None and (not self._counts or self.filled() < 1):
            wanted = max(wanted, least)
        if self._plan.batch == self._first:
            wanted = max(wanted, _FIRST)
        wanted = max(wanted, _FEWEST)
        return None if wanted > 0.75 * count else math.ceil(wanted)


def _check_shape(rows: Rows | SecondMoment, moments: Moments | SketchedMoments) -> None:
    """Raise ValueError unless rows are `[g, n, d]`, or second moments `[g, d, d]`."""
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


class FiniteCheck:
    """Check that rows are finite, without waiting for the device at every batch."""

    def __init__(self) -> None:
        self._noted: list[tuple[str, int, Tensor]] = []

    def note(self, site: str, batch: int, values: Tensor) -> None:
        dtype = torch.float32 if values.device.type == "mps" else torch.float64
        self._noted.append((site, batch, values.sum(dtype=dtype)))

    def check(self) -> None:
        """Check all noted rows; this waits for the device.

        Raises:
            ValueError: rows are not finite. Names the layer and the batch.
        """
        noted, self._noted = self._noted, []
        is_finite: dict[int, bool] = {}
        for device in {total.device for _, _, total in noted}:
            here = [i for i, (_, _, total) in enumerate(noted) if total.device == device]
            finite = torch.stack([noted[i][2] for i in here]).isfinite().tolist()
            is_finite.update(zip(here, finite))
        bad = [noted[i][:2] for i in range(len(noted)) if not is_finite[i]]
        if bad:
            site, batch = bad[0]
            others = len({name for name, when in bad if when == batch} - {site})
            raise ValueError(
                f"NaN or infinite activations enter {site!r}"
                f"{f' and {others} more' if others else ''} in batch {batch}; "
                f"nothing was remembered. Check that batch, or whether training diverged"
            )


def _times(rows: Rows | SecondMoment, scale: int) -> Rows | SecondMoment:
    """Multiply the weight of each row."""
    if isinstance(rows, SecondMoment):
        return SecondMoment(rows.total * scale, rows.weight * scale)
    return rows._replace(weight=rows.weight * scale)


def elements(batch: Any) -> dict[Any, Any]:
    """Return the elements of a batch, by name or number."""
    if isinstance(batch, Mapping):
        return dict(batch)
    return dict(enumerate(batch)) if isinstance(batch, (tuple, list)) else {"": batch}


def _format(tensor: Tensor) -> object:
    """Return the dtype and shape of samples; a model may treat other formats differently."""
    return tensor.dtype, tensor.shape[1:]


def _is_same_memory(element: Any, x: Any) -> bool:
    """Whether two tensors share their memory; equal values could be a coincidence."""
    return (
        isinstance(element, Tensor)
        and isinstance(x, Tensor)
        and element.device == x.device
        and (element.shape, element.stride(), element.dtype) == (x.shape, x.stride(), x.dtype)
        and element.data_ptr() == x.data_ptr()
    )
