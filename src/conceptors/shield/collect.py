"""The second moments of every block's inputs, from one pass over a task's data, or from training.

Every batch runs through the model. With `all_rows`, each layer uses all of its rows. Otherwise it
uses a random sample of each batch, about `enough(d)` rows in all, or all rows if there are fewer.
Each row is weighted by the inverse of its probability, so sums are unbiased for any order of the
data. Embeddings count all tokens. Padding does not count: where a batch or a call of the model has
an `attention_mask` `[n, t]` with zeros, inputs `[n, t, ...]` and `[n · t, ...]` are read at its
ones. A bare parameter has no rows; it is used by a task, or it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from conceptors._internal import checks
from conceptors._internal.batches import (
    Feed,
    check_batches,
    expected,
    feed_first,
    iterate,
    undisturbed,
)
from conceptors._internal.distributed import failing_together, is_distributed, is_sharded
from conceptors.layers import Call, Draws, Sample, SecondMoment
from conceptors.layers.bare import is_bare
from conceptors.layers.dora import WeightReads
from conceptors.layers.uses import WeightUses
from conceptors.moments.inputs import InputMoments
from conceptors.shield.blocks import Scan, Source, WeightBlock, refuse

_CHECK = 64  # batches between checks that wait for the device
_FIRST = 4096  # the fewest rows of the first batch: some layers are reached once
_FEWEST = 64  # the fewest rows of a batch


def enough(dim: int) -> int:
    """Return how many rows of `dim` numbers are always used, if there are as many."""
    return max(16384, 8 * dim)


class NotFiniteError(ValueError):
    """Activations that enter a layer are NaN or infinite."""

    def __init__(self, layer: str, batch: int, effect: str) -> None:
        self.layer = layer
        super().__init__(
            f"NaN or infinite activations enter layer {layer!r} in batch {batch}{effect}. Check "
            f"that batch, and the model's weights"
        )


def collect(
    run: Pass, batches: Any, *, feed: Feed | None, limit: int | None, who: str = "remember"
) -> dict[str, InputMoments]:
    """Collect the moments of all blocks that the rows of these batches reach.

    Training flags, random state and hooks are restored afterwards, also after an exception. `who`
    is the method that errors name. For other errors than those of no batches see `Pass.finish`.
    """
    check_batches(batches, who)
    feed = feed or feed_first
    limit = None if limit is None else checks.whole(limit, "limit", 1)
    device = next(run.model.parameters()).device
    with failing_together(device), undisturbed(run.model), run.observing():
        for batch in iterate(batches, limit, who):
            if not run.count:
                run.batches = expected(batches, limit, batch)
            try:
                run.next_batch()
                with run.watching(batch):
                    feed(run.model, batch)
            except Exception as error:
                number = run.count - 1
                error.add_note(f"{who} stopped at batch {number}: compare it with a training batch")
                raise
        run.finish()
    if not run.count and not is_distributed():
        raise ValueError(
            f"{who} got no batches: the loader is empty, or an iterator that was used before"
            f"{run.effect}. Pass a DataLoader or a list of batches"
        )
    return run.reached("Check that feed(model, batch) calls the model on samples")


class Pass:
    """One pass over data, or training passes: adds the rows of all calls of layers to moments.

    Attributes:
        count: how many batches have begun.
        batches: the number of all batches, perhaps a guess; None if unknown.
        rested: names of frozen blocks whose layers were called.
    """

    def __init__(
        self,
        model: nn.Module,
        scan: Scan,
        *,
        all_rows: bool,
        seed: int,
        sketch: Callable[[int], int | None],
        strays: Callable[[Mapping[str, str]], None] = refuse,
        effect: str = "; nothing was remembered",
        training: int | None = None,
    ) -> None:
        """Prepare the pass.

        Args:
            sketch: returns how many directions a layer with so many inputs stores; None for all.
            strays: handles weights that are used where no rule covers them, by block.
            effect: what errors prevented, at the end of their first sentence.
            training: observe so many batches of training, and no passes that are not training.
        """
        blocks = scan.blocks
        self.model, self.count, self.effect, self.rested = model, 0, effect, set[str]()
        self.batches: int | None = training
        self._trains, self._handle_strays = training is not None, strays
        self._moments = {name: _moments(block, sketch) for name, block in blocks.items()}
        self._all_rows, self._draws, self._resting = all_rows, Draws(seed), scan.resting
        self._only_reads = WeightReads(model)
        self._bare = {name: block for name, block in blocks.items() if is_bare(block.spec)}
        self._sources: dict[nn.Module, list[tuple[str, Source]]] = {}  # with names of blocks
        weights: dict[int, str] = {}
        for name, block in blocks.items():
            if name not in self._bare:
                weights |= {id(p): name for p in block.active()}
                for source in block.sources:
                    self._sources.setdefault(source.layer, []).append((name, source))
        bare = {id(block.parameters[0]): name for name, block in self._bare.items()}
        self._uses = WeightUses(weights, bare)
        uncalled = [*self._bare.values(), *self._resting.values()]
        owners = {source.layer for block in uncalled for source in block.sources}
        self._layers = {model, *self._sources, *owners}
        self._within = ExitStack()  # the present call of the model in training
        self._batch_mask: Tensor | None = None
        self._first: dict[nn.Module, int] = {}  # the first batch that reached a layer
        self._reached: set[tuple[nn.Module, str]] = set()  # layers and their blocks with rows
        self._noted: list[tuple[str, int, Tensor]] = []

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Install the hooks of all layers, and of the modules with bare parameters."""
        _PASSES[id(self)] = self
        with ExitStack() as hooks:
            for layer in self._sources:
                for handle in (
                    layer.register_forward_pre_hook(self._hook("_enter"), prepend=True),
                    layer.register_forward_hook(self._hook("_leave")),
                    # the first hook: FSDP frees weights in its own
                    layer.register_forward_hook(
                        self._hook("_record"), with_kwargs=True, prepend=True
                    ),
                ):
                    hooks.callback(handle.remove)
            # a call uses bare parameters, perhaps in a kernel that cannot be observed
            uses = {name: [block.sources[0]] for name, block in self._bare.items()}
            uses |= {name: block.sources for name, block in self._resting.items()}
            for name, sources in uses.items():
                for source in sources:
                    handle = source.layer.register_forward_hook(self._hook("_note_use", name))
                    hooks.callback(handle.remove)
            hooks.callback(self._within.close)
            for handle in (
                self.model.register_forward_pre_hook(
                    self._hook("_begin_call"), with_kwargs=True, prepend=True
                ),
                self.model.register_forward_hook(self._hook("_end_call"), always_call=True),
            ):
                hooks.callback(handle.remove)
            yield

    def _hook(self, method: str, *args: Any) -> Callable[..., None]:
        return partial(_observe, id(self), method, *args)

    def next_batch(self) -> None:
        """Begin the next batch."""
        if self.count and self.count % _CHECK == 0:
            self.check_finite()
        self._draws.renew()
        self.count += 1

    @contextmanager
    def watching(self, batch: Any) -> Iterator[None]:
        """Observe a call of the model on a batch, whose `attention_mask` is 0 for padding."""
        self._batch_mask = mask_of(self.model, batch)
        self._draws.renew(self._batch_mask)
        with self._only_reads.watching(), self._uses:
            yield
        self._uses.restart()

    def is_active(self, layer: nn.Module) -> bool:
        """Whether to observe the present call: not of a copy; in training, not an evaluation."""
        is_meant = not self._trains or (self.model.training and torch.is_grad_enabled())
        return is_meant and layer in self._layers

    def _begin_call(self, _model: Any, _args: Any, kwargs: Any) -> None:
        if self._trains:
            self._within.close()  # a call that failed before its end
            self._within.enter_context(self.watching(kwargs))
        else:  # a `feed` may call the model several times, with different masks
            has_mask = "attention_mask" in kwargs
            self._draws.renew(mask_of(self.model, kwargs) if has_mask else self._batch_mask)

    def _end_call(self, *_: Any) -> None:
        self._within.close()

    # --- calls of layers ------------------------------------------------------------------

    def _note_use(self, name: str, *_: Any) -> None:
        (self.rested if name in self._resting else self._uses.bare_used).add(name)

    def _enter(self, layer: nn.Module, _args: Any) -> None:
        self._uses.enter(layer)

    def _leave(self, layer: nn.Module, _args: Any, _output: Any) -> None:
        self._uses.leave(layer)

    def _record(self, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Add the rows of a call of a layer."""
        if self._only_reads(layer, args):
            return
        if any(is_functorch_wrapped_tensor(x) for x in args if isinstance(x, Tensor)):
            raise ValueError(
                f"{self._description(layer)} is called under torch.func.vmap or another transform, "
                f"where its inputs cannot be read{self.effect}. Pass a feed(model, batch) that "
                f"calls the model on whole batches"
            )
        self._first.setdefault(layer, self.count)
        try:
            with torch.no_grad():
                for call in self._uses.calls(layer, Call(args, kwargs, output)):
                    self._add(layer, call)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.check_finite()  # names the batch
            raise ValueError(
                f"{self._description(layer)} failed with {type(error).__name__}: {error}"
                f"{self.effect}"
            ) from error

    def _add(self, layer: nn.Module, call: Call) -> None:
        """Add the rows of one call of the class that the rule is for."""
        sources = self._sources[layer]
        rule = sources[0][1].rule
        names = [spec.name for spec in rule.blocks(layer)]
        sample = Sample(partial(self._cap, self._first[layer]), self._draws)
        for part, rows in rule.rows(layer, call, sample):
            if part not in names:
                raise ValueError(f"it gave rows of {part!r}; its blocks are {names}")
            self._reached.add((layer, part))
            takers = [(name, source) for name, source in sources if source.spec.name == part]
            for name, _ in takers[:1]:
                self.note(name, rows[0])
            for name, source in takers:
                if isinstance(rows, SecondMoment):
                    self._moments[name].add_moments(rows.total, rows.weight)
                else:
                    self._moments[name].add_rows(rows.values, rows.weight, source.bias_column)

    def _cap(self, first: int, count: int, dim: int) -> int | None:
        """Return how many of `count` rows of `dim` numbers are used; None for all."""
        if self._all_rows:
            return None
        wanted = enough(dim) / (self.batches or self.count)
        wanted = max(wanted, _FIRST if self.count == first else _FEWEST)
        return None if wanted > 0.75 * count else math.ceil(wanted)

    # --- checks ---------------------------------------------------------------------------

    def note(self, name: str, values: Tensor) -> None:
        """Note rows for `check_finite`, which waits for the device."""
        self._noted.append((name, self.count - 1, values.sum(dtype=torch.float64)))

    def check_finite(self) -> None:
        """Raise ValueError with the layer and the batch if noted rows are not finite."""
        noted, self._noted = self._noted, []
        totals = [total.to(noted[0][2].device) for *_, total in noted]
        finite = torch.stack(totals).isfinite().tolist() if noted else []
        for (name, batch, _), is_finite in zip(noted, finite):
            if not is_finite:
                raise NotFiniteError(name, batch, self.effect)

    def finish(self) -> None:
        """Check all rows, and complete the moments.

        Raises ValueError if rows are not finite, a rule fails, or `strays` refuses.
        """
        self.check_finite()
        called = [(x, source.spec.name) for x in self._first for _, source in self._sources[x]]
        for layer, part in called:
            if (layer, part) not in self._reached:
                raise ValueError(
                    f"{self._description(layer)} gave no rows of its block {part!r}, which would "
                    f"not be protected{self.effect}. Yield them in the rule's `rows`"
                )
        # FSDP hides the uses of bare parameters
        hidden = {n for n, b in self._bare.items() if is_sharded(b.parameters[0].data)}
        for name in self._uses.bare_used | hidden:
            self._moments[name].add_moments(torch.ones(1, 1, 1), 1.0)
        for sums in self._moments.values():
            sums.flush()
        if self._uses.stray:
            self._handle_strays(self._uses.stray)

    def reached(self, advice: str) -> dict[str, InputMoments]:
        """Release the moments of the blocks that rows reached, of all processes together.

        Raises ValueError, with advice, if no row reached any block, or if rows are too large.
        """
        moments, self._moments = self._moments, {}
        for sums in moments.values():
            sums.sums.all_reduce()
        reached = {name: sums for name, sums in moments.items() if sums.sums.weight > 0}
        if not reached:
            names = list(moments)
            listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise ValueError(
                f"no rows reached any of {len(names)} shielded layers ({listed}) in {self.count} "
                f"batches{self.effect}. {advice}, and that some of the layers it uses are neither "
                f"frozen nor excluded"
            )
        large = [name for name, sums in reached.items() if not bool(sums.energy().isfinite().all())]
        if large:
            raise ValueError(
                f"the inputs of layer {large[0]!r} are too large: their squares overflow"
                f"{self.effect}. Scale the inputs, for example to unit variance"
            )
        return reached

    def _description(self, layer: nn.Module) -> str:
        names, sources = zip(*self._sources[layer])
        kinds = f"{type(layer).__name__}, rule {type(sources[0].rule).__name__}"
        return f"layer {', '.join(dict.fromkeys(names))} ({kinds})"


_PASSES: WeakValueDictionary[int, Pass] = WeakValueDictionary()


def _observe(key: int, method: str, *args: Any) -> None:
    """Call a method of a pass as a hook, which copies and pickles of its layer may contain."""
    if torch.compiler.is_compiling():
        return
    run, layer = _PASSES.get(key), next(x for x in args if isinstance(x, nn.Module))
    if run is not None and run.is_active(layer):
        getattr(run, method)(*args)


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


def _moments(block: WeightBlock, sketch: Callable[[int], int | None]) -> InputMoments:
    groups, dim = block.size
    return InputMoments(
        groups,
        dim,
        len(block.biases),
        rank=sketch(dim),
        only_occurrence=block.spec.layout == "tokens",
        device=block.parameters[0].device,
    )
