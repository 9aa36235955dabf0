"""The public class `Shield`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors._internal import checks
from conceptors._internal.batches import Feed
from conceptors._internal.distributed import failing_together, is_sharded
from conceptors.algebra.conceptor import Conceptor, similarity
from conceptors.algebra.tasks import free_share, stride
from conceptors.moments.inputs import InputMoments
from conceptors.shield import health, inspect, options
from conceptors.shield.blocks import Scan, refuse, survey
from conceptors.shield.claims import Claims, Remembered, claims_of_task, decompose
from conceptors.shield.collect import Pass, collect
from conceptors.shield.guard import Guards, Protected, project_weights
from conceptors.shield.inspect import Explanation
from conceptors.shield.options import Aperture, Protection
from conceptors.shield.state import explaining, pack, read, read_file, write_file
from conceptors.shield.stream import Stream

_STREAMED = 0.5  # `known` of training passes: the same task may be consolidated many times


class Shield:
    """Protect a model's weights against forgetting (conceptor-aided back-propagation).

    `remember` computes a conceptor of each layer's inputs on a task's data, and joins it with those
    of earlier tasks (A ← A ∨ C). Guarded optimizers then change weights only in the free space
    F = I - A: in W = W_before + V F^½, they train V.

    Args:
        model: the model to protect. Nothing is set on its modules or parameters.
        aperture: how much is protected. `"auto"` chooses the aperture of each layer and task from
            the data (see `Auto`). A number is the paper's aperture α, and a larger number protects
            more; with plain SGD this is Algorithm 2. `Quota(share)` and `Energy(share)` choose it
            by a share of the space or of the energy. A mapping from layer name patterns to any of
            these sets it by layer; the first matching pattern counts.
        hard: whether to use hard conceptors, which round singular values to 0 or 1. With
            `"auto"`, all directions that a task uses are protected: old outputs stay fixed to
            numerical precision, and later tasks use only the others.
        increment_decay: λ of Algorithm 2. Decays weights towards their values after the last task,
            W ← W - η 2 λ (W - W_before), independently of the projection.
        unsupported: how to treat trainable parameters of unsupported layers. `"error"` lists
            them in a `ValueError`, `"freeze"` fixes them once a task is remembered, and
            `"ignore"` trains them unprotected.
        exclude: name patterns of layers or parameters to train unprotected, such as `"head.*"`.
        freeze: name patterns of layers or parameters to fix once a task is remembered.
        rank: the largest number of protected directions per layer, as an integer or as a share of
            the layer's inputs. With hard conceptors, directions of earlier tasks have priority.
            Layers with more than 8192 inputs store a sketch of `rank` directions, by default an
            eighth of their inputs; with `rank=1.0` they store exact matrices.
        batchnorm: `"freeze"` fixes BatchNorm's running statistics, and normalises with them,
            once a task is remembered. `"follow"` lets them follow the data; old outputs drift.
        keep_tasks: whether to store each task's conceptors separately, for `forget`.
        seed: the seed for the sampling of rows. A hard shield uses all rows of a task. Others use
            an unbiased sample of at least 16384 rows, and 8 rows per input, of each layer.

    >>> import torch
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
    >>> shield = Shield(model)
    >>> optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    >>> old, new = torch.randn(64, 5) @ torch.randn(5, 20), torch.randn(64, 20)
    >>> shield.remember(old)
    Shield(2 layers, 1 task, mean quota 0.16)
    >>> before = model(old)
    >>> for _ in range(20):
    ...     optimizer.zero_grad()
    ...     model(new).square().mean().backward()
    ...     optimizer.step()
    >>> bool((model(old) - before).abs().mean() < 0.1)
    True
    """

    def __init__(
        self,
        model: nn.Module,
        aperture: Literal["auto"] | Aperture | Mapping[str, Any] = "auto",
        *,
        hard: bool = False,
        increment_decay: float = 0.0,
        unsupported: Literal["error", "freeze", "ignore"] = "error",
        exclude: Iterable[str] = (),
        freeze: Iterable[str] = (),
        rank: int | float | None = None,
        batchnorm: Literal["freeze", "follow"] = "freeze",
        keep_tasks: bool = False,
        seed: int = 0,
    ) -> None:
        self.model = options.check_model(model)
        self.aperture = options.check_apertures(aperture)
        self.hard = options.one_of(hard, "hard", (True, False))
        self.increment_decay = checks.number(increment_decay, "increment_decay", 0.0, float("inf"))
        self.unsupported = options.one_of(unsupported, "unsupported", ("error", "freeze", "ignore"))
        self.batchnorm = options.one_of(batchnorm, "batchnorm", ("freeze", "follow"))
        self.exclude = options.check_patterns(exclude, "exclude")
        self.freeze = options.check_patterns(freeze, "freeze")
        self.rank = options.check_rank(rank)
        self.keep_tasks = options.one_of(keep_tasks, "keep_tasks", (True, False))
        self.seed = checks.whole(seed, "seed", 0)
        self._protection = Protection(self.aperture, self.hard, self.rank)
        self._remembered = Remembered()
        self._anchors: dict[str, Tensor] = {}  # weights after the last task, for pull and decay
        self._stray: set[str] = set()  # blocks that are frozen because their uses are not covered
        follows = self.batchnorm == "follow"
        self._health = health.Health(self.hard, self.seed, self.exclude, follows)
        self._guards = Guards(
            self._protected,
            check_thread=self._health.check_thread,
            look_again=self._look_again,
            look_before_step=partial(self._look, before_step=True),
            report_passing=lambda shares: self._health.slow(
                {name: share for name, share in shares.items() if name in self._large()}
                if not self._streams  # these steps are no task, and need not learn much
                else {}
            ),
        )
        self._streams: WeakKeyDictionary[Optimizer, Stream] = WeakKeyDictionary()
        self._attached = True
        health.claim_model(
            self.model, self, lambda this, o: this._health.check_stranger(o, this._guards)
        )
        try:
            self._scan = self._rescan()
            layers = self.aperture if isinstance(self.aperture, Mapping) else ()
            patterns = {"exclude": self.exclude, "freeze": self.freeze, "aperture": layers}
            options.check_names(self.model, self._scan.blocks, patterns)
            self._adopt(self._remembered, self._copied(pulls=False))
        except BaseException:
            health.release_model(self.model)
            raise

    # --- use ------------------------------------------------------------------------------

    def guard(self, optimizer: Optimizer, *, remember_every: int | None = None) -> Optimizer:
        """Keep all steps of an optimizer in the free space, and return the optimizer.

        Call this for every optimizer of the model, before its first step. Each step projects
        `.grad` in place. Schedulers, gradient scalers and checkpoints work as usual, and so do
        wrappers with the optimizer as their attribute `optimizer`, such as that of accelerate.

        Args:
            remember_every: for data without task boundaries, a number of steps that is shorter
                than a task. After so many steps of this optimizer, their data is remembered, as by
                `remember` with `known=0.5`. Layers' inputs are read in passes in training mode with
                gradients, without padding if the model is called with `attention_mask=`. Data that
                is not remembered yet is no part of `state_dict`. NaN activations are left out.

        Raises ValueError if the optimizer steps parameters that are not part of the model, or
        evaluates other weights than it trains, or if the shield is detached.
        """
        inner, every = options.check_optimizer(optimizer, self.model), remember_every
        every = None if every is None else checks.whole(every, "remember_every", 1)
        with self._health.alone():
            self.refresh()
            self._guards.add(inner)
            if every is not None:
                streamed = self._streams.pop(inner, None)
                if streamed is not None:
                    streamed.remove()
                self._streams[inner] = Stream(
                    inner,
                    every,
                    begin=lambda batches: self._pass("remember", batches),
                    consolidate=self._consolidate,
                    skip=self._health.skip,
                )
                if streamed is None:
                    self._guards.renew()  # steps are not doubled any more
        return optimizer

    def project_(self, optimizer: Optimizer) -> None:
        """Project the gradients of an optimizer now, in place, and not again in its next step.

        Call this before `clip_grad_norm_`, where you would call `scaler.unscale_(optimizer)`, or
        after that. Clipped first, most of the norm would belong to directions that are protected.
        """
        inner = options.check_optimizer(optimizer, self.model)
        guard = self._guards.of(inner)
        if guard is None:
            raise ValueError(
                f"this {type(inner).__name__} is not guarded; call shield.guard(optimizer) before "
                f"its first step"
            )
        guard.project(inner)

    def remember(
        self,
        batches: Any,
        *,
        feed: Feed | None = None,
        limit: int | None = None,
        known: float = 0.0,
    ) -> Shield:
        """Protect the model's outputs on this data from now on. Call it after each task.

        The model runs once over the data, in evaluation mode and without gradients. Training
        flags, random state and BatchNorm statistics do not change. If an error occurs, nothing is
        remembered, and earlier tasks stay protected.

        Args:
            batches: a DataLoader, an iterable of batches, or a tensor of samples.
            feed: a function that runs the model, called as `feed(model, batch)`. Default: call
                the model with the batch, the first element of an (inputs, targets) batch, or a
                mapping as keyword arguments.
            limit: the largest number of samples to use. Default: all.
            known: the share of this task, from 0 to 1, that the model could do before it was
                trained on it. Directions shared with earlier tasks are counted less by this share.

        Raises:
            TypeError: `batches` is a single batch or not iterable.
            ValueError: there is no data, no layer is reached, activations are NaN or infinite
                (names the layer and the batch), or their precision is too coarse for the aperture.
        """
        known = checks.number(known, "known", 0.0, 1.0)
        with self._health.alone():
            self._guards.settle()
            self._add_task(*self._claims_of("remember", batches, feed, limit), known)
        return self

    def free_adapters(self) -> Shield:
        """Start the LoRA adapters B A of peft in the free space of their inputs: A ← A F^½.

        Call it after `remember`, and before training. Guarded steps leave A in the free space, so
        A x vanishes on remembered data (with soft conceptors, nearly), and B may learn freely.
        Merging the adapters preserves the outputs on this data. Later tasks protect B as well.

        Raises:
            ValueError: there is no adapter, nothing is remembered, or adapters are trained already.
        """
        with self._health.alone():
            self.refresh()
            blocks, claimed = self._scan.blocks, self._remembered.claimed.conceptors
            downs = [name for name in blocks if ".lora_A." in name and name in claimed]
            ups = [name for name in blocks if ".lora_B." in name]
            if not downs or any(blocks[n].matrix(blocks[n].parameters).any() for n in ups):
                raise ValueError(
                    "free_adapters needs new LoRA adapters, with B = 0, whose inputs are "
                    "remembered. Call get_peft_model, create the shield, then call "
                    "shield.remember(sample) and shield.free_adapters() before training"
                )
            project_weights({name: blocks[name] for name in downs}, self._protected())
            self._adopt(self._remembered.without(ups), self._copied(pulls=True))
            self._accept()
        return self

    def forget(self, task: int) -> Shield:
        """Free the directions that only one task uses; 0 is the first remembered task.

        The weights do not change. The shield must have been created with `keep_tasks=True`.
        """
        if not self.keep_tasks:
            raise ValueError(
                "forget needs the conceptors of each task, which this shield does not store; "
                "create the shield with keep_tasks=True"
            )
        index, count = checks.whole(task, "task", 0), len(self._remembered.tasks)
        if index >= count:
            raise ValueError(
                f"task {task} is not remembered; there are {count} tasks, and the first is task 0"
            )
        with self._health.alone():
            self._look()
            remembered = self._remembered.without_task(index, self._scan.blocks, self._protection)
            self._adopt(remembered, self._anchors)
            self._accept()
        return self

    def refresh(self) -> Shield:
        """Scan the model again, after its layers have changed, as `guard` and `remember` do."""
        if not self._attached:
            raise ValueError(
                "this shield was detached and protects nothing; create a new one, Shield(model)"
            )
        with self._health.alone():
            before, scan = self._scan, self._rescan()
            self._health.wake(scan.blocks)
            is_same = scan.identity == before.identity
            if not is_same:
                self._remembered.check_sizes(scan.blocks)
            self._scan = scan
            self._anchors = self._copied(self.n_tasks > 0, self._anchors)
            health.follow_tasks(self.model, self.n_tasks, self.batchnorm == "freeze")
            if not is_same:
                self._look(replaced=scan.replaced(before))
                self._guards.renew()
                self._restart_streams()
        return self

    def detach(self) -> None:
        """Remove all hooks from the model and the optimizers. The weights do not change."""
        self._guards.detach()
        for stream in list(self._streams.values()):
            stream.remove()
        self._streams.clear()
        self._attached = False
        health.release_model(self.model)

    # --- what is protected ----------------------------------------------------------------

    @property
    def n_tasks(self) -> int:
        """The number of remembered tasks."""
        return self._remembered.n_tasks

    def quota(self) -> dict[str, float]:
        """Return the protected share of each layer's input space, from 0 to 1."""
        return {name: self._remembered.quota(name) for name in self._scan.blocks}

    def explain(self) -> Explanation:
        """Return one `LayerRow` per layer that says how it is protected; print it as a table.

        The printed table has one line per kind of layer if there are more than 40 layers.

        Scans the model first, and warns about weights that something other than guarded steps has
        moved. `passing` is None before the first step of a later task.
        """
        if self._attached:
            self.refresh()
            self._look()
        return self._explain(self._guards.passing())

    def forecast(
        self, batches: Any, *, feed: Feed | None = None, limit: int | None = None
    ) -> Explanation:
        """Return the table of `explain` with the `passing` to expect on new data.

        Call it before training on the data. It is the share of the inputs' energy that lies in
        free directions. A `ShieldFullWarning` names the layers that will hardly learn the data.
        The arguments are those of `remember`.
        """
        if not self.n_tasks:
            raise ValueError(
                "forecast compares new data with what is remembered, and nothing is; call "
                "shield.remember(sample) first"
            )
        passing = self._compare(free_share, "forecast", batches, feed, limit)
        self._health.forecast(passing, self._large())
        return self._explain(passing)

    def similarity(
        self, batches: Any, *, feed: Feed | None = None, limit: int | None = None
    ) -> dict[str, float]:
        """Return the similarity of new data with the remembered tasks: ρ from 0 to 1, by layer.

        The higher it is, the fewer free directions the new task can use. Call it before training
        on the data. The arguments are those of `remember`.
        """
        return self._compare(
            lambda A, C: similarity(A, C).mean(), "similarity", batches, feed, limit
        )

    def strides(
        self, batches: Any, known: float, *, feed: Feed | None = None, limit: int | None = None
    ) -> dict[str, float]:
        """Return factors of at least 1, by layer, for the learning rates of SGD on new data.

        The more of the data lies in protected directions, the more the shield shortens steps, and
        the larger the factor. Larger steps pay only for a task that the model can do in part
        already: `known` is the share of it, from 0 to 1, that the model can do before training,
        such as its accuracy above chance. The other arguments are those of `remember`.
        """
        known = checks.number(known, "known", 0.0, 1.0)
        return self._compare(
            lambda A, C: stride(A, C, known).amin(), "strides", batches, feed, limit
        )

    def spectra(self) -> dict[str, Tensor]:
        """Return the singular values of A by layer, descending: `[d]`, or `[groups, d]`."""
        return {name: A.singular_values.squeeze(0) for name, A in self.conceptors().items()}

    def conceptors(self) -> dict[str, Conceptor]:
        """Return A, the conceptor of all tasks, by layer (a batch with one conceptor per group)."""
        return dict(self._remembered.claimed.conceptors)

    def tasks(self) -> list[dict[str, Conceptor]]:
        """Return the conceptors of each task by layer; an empty list without `keep_tasks=True`."""
        return [dict(task.conceptors) for task in self._remembered.tasks]

    def report(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        accuracy: Sequence[Sequence[float]] = (),
    ) -> Path:
        """Write an HTML page about this shield, and return its path. Needs the extra `figures`.

        The page shows how each layer is protected, quotas, spectra, the share of the current
        task's gradients that is applied, the similarity of the tasks (with `keep_tasks=True`), and
        what to do next. `accuracy`, in percent, has one row after each task, and one column per
        task. The default `title` is the class name of the model.
        """
        from conceptors.report import write_shield_page

        shares = {row.layer: row.passing for row in self.explain() if row.passing is not None}
        return write_shield_page(self, path, health.stuck(shares, self._large()), title, accuracy)

    def __repr__(self) -> str:
        quota = self.quota()
        mean = sum(quota.values()) / max(1, len(quota))
        layers = f"{len(quota)} layer{'' if len(quota) == 1 else 's'}"
        tasks = f"{self.n_tasks} task{'' if self.n_tasks == 1 else 's'}"
        return f"Shield({layers}, {tasks}, mean quota {mean:.2f})"

    # --- saving and loading ---------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all remembered tasks as plain dictionaries, tensors and numbers.

        Save the model's weights at the same time, because loading trusts the weights of that
        moment. All processes of a sharded model call this together; any number can load the state.
        """
        self._guards.settle()
        if self._attached:
            self._look()
        self._guards.doubt()
        return pack(self._scan, self._remembered, self._anchors, self._health.resting)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> Shield:
        """Load the tasks of another shield, on any device and in any dtype.

        Load the model's weights first. All processes of a sharded model call this together. The
        model may have more layers than the state. Raises ValueError, and changes nothing, if the
        state is damaged or does not fit; with `strict=False`, layers that do not fit are left out.
        """
        with self._health.alone():
            self._guards.abandon()
            self.refresh()
            remembered, anchors, weights, resting = read(state, self._scan, self.model, strict)
            self._adopt(remembered, self._anchors | anchors)
            self._health.loaded(resting, weights)
            self._restart_streams()
        return self

    def save(self, path: str | Path) -> None:
        """Save the state as a safetensors file, in one step, and create missing folders."""
        write_file(self.state_dict(), path)

    def load(self, path: str | Path, *, strict: bool = True) -> Shield:
        """Load a file from `save`; see `load_state_dict`."""
        content = read_file(path)
        with explaining(f"{path}: "):
            return self.load_state_dict(content, strict=strict)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Shield cannot be copied or pickled, because it belongs to one model and its "
            "optimizers; save shield.state_dict(), and load it into Shield(other_model)"
        )

    # --- inside ---------------------------------------------------------------------------

    def _explain(self, passing: Mapping[str, float]) -> Explanation:
        claims = self._remembered.claims(self._scan.blocks, self._protection)
        return inspect.explain(self._scan, claims, self._guards.ways(), passing)

    def _compare(
        self, measure: Callable[[Conceptor, Conceptor], Tensor], who: str, *how: Any
    ) -> dict[str, float]:
        """Compare the conceptors of all tasks with those of new data, by layer."""
        (task, _), claimed = self._claims_of(who, *how), self.conceptors()
        return {
            name: float(measure(claimed[name].to(conceptor.device), conceptor))
            for name, conceptor in task.conceptors.items()
            if name in claimed
        }

    def _claims_of(
        self, who: str, batches: Any, feed: Feed | None, limit: int | None
    ) -> tuple[Claims, set[str]]:
        """Compute what a task would claim; for forecasts and strides, of a soft shield.

        Returns the frozen layers that the data reached, too.
        """
        with self._health.alone():
            self.refresh()
            run = self._pass(who)
            moments = collect(run, batches, feed=feed, limit=limit, who=who)
            return self._claims_from(moments, who), run.rested

    def _pass(self, who: str, training: int | None = None) -> Pass:
        """Prepare a pass over data or, with a number of steps, training passes."""
        return Pass(
            self.model,
            self._scan,
            all_rows=self.hard,
            seed=self.seed + self.n_tasks,
            sketch=self._protection.sketch_rank,
            strays=self._handle_strays,
            effect="; nothing was remembered" if who == "remember" else "",
            training=training,
        )

    def _claims_from(self, moments: dict[str, InputMoments], who: str) -> Claims:
        """Compute the claims of moments, and empty `moments`."""
        _reshard(self.model)
        blocks = self._scan.blocks
        moments = {
            name: sums
            for name, sums in moments.items()
            if name in blocks and (sums.groups, sums.dim) == blocks[name].size
        }
        if self.hard and self.rank is None:
            health.warn_of_dropped({name: sums.dropped for name, sums in moments.items()})
        is_hard = self.hard and who not in ("strides", "forecast")
        protection = replace(self._protection, hard=is_hard)
        return claims_of_task(moments, blocks, protection, self.conceptors())

    def _consolidate(self, run: Pass) -> None:
        """Remember what training passes have used."""
        with self._health.alone():
            self._guards.settle()
            with failing_together(next(self.model.parameters()).device):
                run.finish()
            self.refresh()
            moments = run.reached(
                "remember_every reads calls of layers in training mode with gradients, and none "
                "inside torch.compile. Check that the training passes are such calls"
            )
            self._add_task(self._claims_from(moments, "remember"), run.rested, known=_STREAMED)

    def _add_task(self, task: Claims, rested: set[str], known: float) -> None:
        """Remember a task that used frozen layers, too."""
        self._look()
        remembered = self._remembered.with_task(
            task, self._scan.blocks, self._protection, self.keep_tasks, known
        )
        self._adopt(remembered, self._copied(pulls=True))
        self._health.resting |= rested
        self._health.remembered(self._scan.blocks, task.conceptors, self._guards.trained)
        self._accept()

    def _restart_streams(self) -> None:
        for stream in list(self._streams.values()):
            stream.restart()

    def _handle_strays(self, uses: Mapping[str, str]) -> None:
        """Refuse or freeze weights that are used outside of their rules."""
        if self.unsupported == "error":
            refuse(uses)
        if self.unsupported == "freeze":
            self._stray |= uses.keys()
            self.refresh()

    def _rescan(self) -> Scan:
        _reshard(self.model)
        scan = survey(self.model, self.exclude, [*self.freeze, *self._stray], self.unsupported)
        for name in scan.blocks:
            self._protection.aperture(name)  # raises ValueError if no pattern matches
        return scan

    def _copied(self, pulls: bool, copies: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Copy the weights to which a decay, or with `pulls` a pull, leads; add to `copies`."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        copied = dict(copies or {})
        for layer, block in self._scan.blocks.items():
            if self.increment_decay or (pulls and self._protection.pull(layer)):
                for name, value in ((names[id(p)], p.data) for p in block.parameters):
                    if name not in copied or copied[name].shape != value.shape:
                        where = value.device if is_sharded(value) else "cpu"
                        copied[name] = value.to(where, copy=True)
        return copied

    def _protected(self) -> Protected:
        decompose(self._remembered.claimed.conceptors, self._scan.blocks, self._protection)
        named = {n: p for n, p in self.model.named_parameters() if n in self._anchors}
        anchors = {id(p): self._anchors[name] for name, p in named.items()}
        if self.increment_decay:  # every step needs them
            anchors = {id(p): anchors[id(p)].to(p.device, p.dtype) for p in named.values()}
        claims = self._remembered.claims(self._scan.blocks, self._protection)
        pulled = [n for n, c in claims.items() if c.stiffness is not None and c.conceptor.dim > 2]
        return Protected(
            blocks=self._scan.blocks,
            claims=claims,
            frozen=self._scan.frozen if self.n_tasks else {},
            magnitudes=self._scan.magnitudes if self.n_tasks else {},
            anchors=anchors,
            sizes=self._remembered.sizes,
            increment_decay=self.increment_decay,
            stretched=[n for n in pulled if ".lora_" not in n and not self._streams],
        )

    def _adopt(self, remembered: Remembered, anchors: dict[str, Tensor]) -> None:
        """Protect these tasks from now on; if an error occurs, those from before."""
        before = self._remembered, self._anchors
        self._remembered, self._anchors = remembered, anchors
        try:
            self._guards.renew()
            self.quota()  # decomposes matrices while they are still on the GPU
            # the guards have computed what they need, so large matrices may leave the GPU
            remembered.claimed = remembered.claimed.stowed()
            health.follow_tasks(self.model, self.n_tasks, self.batchnorm == "freeze")
        except BaseException:
            self._remembered, self._anchors = before
            self._guards.renew()
            raise

    def _accept(self) -> None:
        """Accept the current weights and buffers as those that the remembered tasks need."""
        self._health.accept(self._scan.blocks, self.conceptors(), self.model)
        self._guards.stepped.clear()
        self._guards.trained.clear()
        quota = self.quota()
        self._health.fill({name: quota[name] for name in self._large()})

    def _look(self, replaced: Iterable[str] = (), before_step: bool = False) -> None:
        """Warn about weights and buffers that something else than guarded steps has changed."""
        moved, stepped = self._guards.moved(), self._guards.stepped.difference(replaced)
        self._health.look(self._scan.blocks, self.model, moved, stepped, before_step)

    def _look_again(self) -> None:
        """Scan the model again before some of the steps of an optimizer."""
        if self.n_tasks:
            self.refresh()
            self._health.look_at_buffers(self.model)
            if not self._health.has_accepted:
                self._accept()

    def _large(self) -> dict[str, bool]:
        """Return whether layers have automatic apertures; none of norms, which are soon full."""
        claimed = self._remembered.claimed.conceptors
        large = [name for name in self._scan.blocks if name in claimed and claimed[name].dim > 2]
        return {name: self._protection.is_auto(name) for name in large}


def _reshard(model: nn.Module) -> None:
    """Reshard the parameters of FSDP2 modules, which stay gathered after a forward pass."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            module.reshard()  # type: ignore[operator]
