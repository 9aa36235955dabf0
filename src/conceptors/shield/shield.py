"""The shield: a network learns one task after another, and keeps what it has learned."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors._internal import checks
from conceptors._internal.host import to_host
from conceptors.algebra.conceptor import Conceptor, similarity
from conceptors.algebra.targets import Auto, Energy, Quota
from conceptors.shield import state as shield_state
from conceptors.shield.batchnorm import hold_statistics
from conceptors.shield.blocks import Scan, is_sharded, matches, scan
from conceptors.shield.explain import Explanation, explain
from conceptors.shield.remember.moments import Moments, SketchedMoments
from conceptors.shield.remember.run import Feed, collect
from conceptors.shield.state import LoadReport
from conceptors.shield.step.context import Claim, Context, Protected
from conceptors.shield.step.guard import Guard

Aperture = float | Auto | Quota | Energy

_STOWED = 2048  # inputs from which on a layer's claims are kept off the GPU
_LEAST = 0.02  # singular values up to which an automatic aperture's directions count as free
_STUCK = 0.05  # share of a step that passes, under which a layer hardly learns
_STUCK_AUTO = 0.01  # the same with an automatic aperture, whose directions stay soft

_ATTACHED: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Shield]] = weakref.WeakKeyDictionary()


@contextmanager
def _lasting() -> Iterator[None]:
    """Tensors made in inference mode could not be changed by a step."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


class ShieldFullWarning(UserWarning):
    """Some layers have little free space left for further tasks, or let hardly any step pass."""


class Shield:
    """Shields a model's weights against forgetting (conceptor-aided back-propagation).

    After each task, `remember` builds for every layer a conceptor of what entered it and ORs it
    into A, the space claimed so far. From then on every optimizer that is guarded works in the
    free space F = I - A alone: on V in W = W_previous + V F^½.

    Args:
        model: any `nn.Module`. Nothing is set on it; `detach` leaves no trace.
        aperture: how much is protected. "auto" chooses it for every layer and task from the
            task's own data (see `Auto`). A number is α of the report, larger protects more; with
            plain SGD this is Algorithm 2. Also `Quota(share)` or `Energy(share)`, or a mapping
            from layer name patterns to any of these (the first that fits counts).
        hard: use hard projectors (singular values >= 1/2 become 1, the others 0).
        increment_decay: λ of Algorithm 2: pulls the weights towards where the last task left
            them, W ← W - η 2 λ (W - W_previous), apart from the projection.
        project: "gradients" (and steps), or "inputs", which is less work for plain and momentum
            SGD where a batch has fewer rows than layers have outputs; gradients must then be as
            backward passes make them (clipping and accumulation are fine), and nothing can be
            pulled back: not for "auto".
        unsupported: what to do with trainable parameters of unknown layers: "error" lists and
            refuses them, "freeze" holds them fixed once a task is remembered, "ignore" lets them
            change (and forget).
        exclude: name patterns of layers or parameters that are left alone, like "head.*".
        freeze: name patterns of parameters to hold fixed once a task is remembered.
        rank: at most so many directions a layer are protected; a number, or a share of d. With
            hard conceptors earlier tasks' directions come first.
        dense_limit: layers of more inputs keep a sketch of `rank` directions (by default an
            eighth of d) instead of d x d matrices.
        rows: which input rows of a layer are used: "auto" (all, except where there are more than
            16384 and more than 8 d; then an unbiased sample of the batches and of their rows), at
            most so many of every batch, or None for all.
        batchnorm: "freeze" keeps BatchNorm's running statistics, and normalises with them, once
            a task is remembered; "follow" lets them follow the data (old tasks then drift).
        keep_tasks: keep every task's conceptors apart, so that `forget` can remove one.
        warn_at_quota: `remember` warns about layers whose quota passes this.
        dtype: in which second moments are summed.
        seed: of the sampling of rows.

    >>> import torch
    >>> from conceptors import Shield
    >>> _ = torch.manual_seed(0)
    >>> from torch.nn import Linear, Sequential, Tanh
    >>> model = Sequential(Linear(20, 64), Tanh(), Linear(64, 2))
    >>> shield = Shield(model)
    >>> optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    >>> old, new = torch.randn(64, 5) @ torch.randn(5, 20), torch.randn(64, 20)
    >>> shield.remember(old)
    Shield(2 layers, 1 task, mean quota 0.18)
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
        project: Literal["gradients", "inputs"] = "gradients",
        unsupported: Literal["error", "freeze", "ignore"] = "error",
        exclude: Iterable[str] = (),
        freeze: Iterable[str] = (),
        rank: int | float | None = None,
        dense_limit: int = 8192,
        rows: int | Literal["auto"] | None = "auto",
        batchnorm: Literal["freeze", "follow"] = "freeze",
        keep_tasks: bool = False,
        warn_at_quota: float = 0.95,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"Shield needs an nn.Module, got {type(model).__name__}")
        self.aperture = _check_apertures(aperture)
        self.hard = bool(hard)
        self.increment_decay = checks.number(increment_decay, "increment_decay", 0.0, float("inf"))
        self.project = _one_of(project, "project", ("gradients", "inputs"))
        self.unsupported = _one_of(unsupported, "unsupported", ("error", "freeze", "ignore"))
        self.batchnorm = _one_of(batchnorm, "batchnorm", ("freeze", "follow"))
        self.exclude, self.freeze = _patterns(exclude, "exclude"), _patterns(freeze, "freeze")
        self.rank = _check_rank(rank)
        self.dense_limit = checks.whole(dense_limit, "dense_limit", 0)
        self.rows: int | Literal["auto"] | None = "auto"
        if rows != "auto":
            self.rows = None if rows is None else checks.whole(rows, 'rows (or "auto", or None)', 1)
        self.keep_tasks = bool(keep_tasks)
        self.warn_at_quota = checks.number(warn_at_quota, "warn_at_quota", 0.0, 1.0)
        self.dtype = checks.real_dtype(dtype)
        self.seed = checks.whole(seed, "seed", 0)
        self.model = unwrap(model)
        _refuse_second(self.model)
        reshard(self.model)

        self.n_tasks = 0
        self._claimed: dict[str, Conceptor] = {}
        self._tasks: list[dict[str, Conceptor]] = []
        self._stiffness: dict[str, Tensor] = {}  # of layers with an automatic aperture
        self._task_stiffness: list[dict[str, Tensor]] = []  # the same, task by task as `_tasks`
        self._guards: list[Guard] = []
        self._full: set[str] = set()
        self._anchors: dict[str, Tensor] = {}
        self._statistics: list[Any] = []
        self._resumed: dict[str, Tensor] = {}  # notes of a checkpoint, until the next task
        self._quotas: dict[str, float] = {}  # of what is claimed now, once computed
        self._attached = True
        self._scan = self._rescan()
        self._set_anchors()
        self._context = Context()
        self._changed()
        _ATTACHED[self.model] = weakref.ref(self)

    # --- use ------------------------------------------------------------------------------

    def guard(
        self, optimizer: Optimizer, *, between: Callable[[], None] | None = None
    ) -> Optimizer:
        """Keep all steps of an optimizer in the free space; returns the same optimizer.

        Works through the optimizer's own step hooks, so that schedulers, gradient scalers and
        checkpoints see the optimizer they know. A wrapper with the optimizer inside, as accelerate
        makes it, is guarded there. Guard every optimizer of the model. With `project="inputs"`
        momentum of earlier tasks is dropped: load an optimizer's checkpoint after guarding it.

        Args:
            between: called at every step when `.grad` is what the optimizer is going to see,
                projected; it may change gradients in place. An optimizer that is guarded already
                goes on with a new one.

        Raises:
            ValueError: it holds parameters that are not the model's, or the shield is detached;
                or it is not for `project="inputs"`.
        """
        self._check_attached()
        whole, optimizer = optimizer, _innermost(optimizer)
        own = {id(p) for p in self.model.parameters()}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        foreign = [list(p.shape) for p in held if id(p) not in own]
        if foreign:
            raise ValueError(
                f"the optimizer holds {len(foreign)} of {len(held)} parameters that are not the "
                f"shielded model's (shapes {foreign[:3]}{', ...' if len(foreign) > 3 else ''}); "
                f"make a separate optimizer for them, or make this one after moving the model"
            )
        if self.project == "inputs":
            _check_inputs(optimizer)
        self.refresh()
        known = next((guard for guard in self._guards if guard.holds(optimizer)), None)
        if known is not None:
            known.between = between or known.between
            known.prepare()
        else:
            self._guards = [guard for guard in self._guards if guard.parameters()]
            self._guards.append(Guard(optimizer, lambda: self._context, between))
            self._changed()  # what is held together may be more now
            self._guards[-1].calm()
        return whole

    def remember(
        self,
        batches: Any,
        *,
        feed: Feed | None = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> Shield:
        """Protect what the model does on this data from now on: call it after each task.

        One pass without gradients in evaluation mode; training flags, random state and BatchNorm
        statistics stay as they are. If anything fails, nothing is remembered and nothing lost.

        Args:
            batches: a DataLoader, an iterable of batches, or a tensor of samples.
            feed: called as feed(model, batch) to run the model; by default a batch, the first
                part of a (inputs, targets) batch, or a mapping as keyword arguments.
            limit: use at most so many samples.
            progress: show a progress bar.

        Raises:
            ValueError: no data, NaN or infinite activations (names the layer and the batch), or
                a dtype that is too small for the aperture.
        """
        task, stiffness = self._conceptors(batches, feed, limit, progress)
        reshard(self.model)
        claimed = self._joined(self._claimed, task)
        self._stiffness = _combined(self._claimed, self._stiffness, task, stiffness)
        self._claimed = claimed
        if self.keep_tasks:
            self._tasks.append({name: _stowed(c) for name, c in task.items()})
            self._task_stiffness.append(stiffness)
        self.n_tasks += 1
        self._resumed.clear()
        self._set_anchors()
        self._hold_statistics()
        self._claims_changed()
        for guard in self._guards:
            guard.calm()
        self._warn_if_full()
        return self

    def similarity(
        self,
        batches: Any,
        *,
        feed: Feed | None = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> dict[str, float]:
        """How much new data overlaps, layer by layer, with what is remembered: ρ in [0, 1].

        A forecast before training on it: the higher, the less free space the new task can use.
        """
        task, _ = self._conceptors(batches, feed, limit, progress)
        return {
            name: float(similarity(conceptor, self._claimed[name].to(conceptor.device)).mean())
            for name, conceptor in task.items()
            if name in self._claimed
        }

    def forget(self, task: int) -> Shield:
        """Free the space that one task alone claims (task 0 is the first).

        Needs `keep_tasks=True`. The weights stay as they are; later tasks may use that space.
        """
        if not self.keep_tasks:
            raise ValueError(
                "forget needs every task's share kept apart: make the shield with keep_tasks=True"
            )
        index = checks.whole(task, "task", 0)
        if index >= len(self._tasks):
            raise ValueError(f"task {task} is not remembered; there are {len(self._tasks)} tasks")
        kept = [i for i in range(len(self._tasks)) if i != index]
        claimed: dict[str, Conceptor] = {}
        stiffness: dict[str, Tensor] = {}
        for i in kept:
            stiffness = _combined(claimed, stiffness, self._tasks[i], self._task_stiffness[i])
            claimed = self._joined(claimed, self._tasks[i])
        self._tasks = [self._tasks[i] for i in kept]
        self._task_stiffness = [self._task_stiffness[i] for i in kept]
        self._claimed, self._stiffness, self.n_tasks = claimed, stiffness, self.n_tasks - 1
        self._resumed.clear()
        self._claims_changed()
        self._full &= {name for name, quota in self.quota().items() if quota > self.warn_at_quota}
        return self

    def quota(self) -> dict[str, float]:
        """How full each layer is: the share of its input space claimed so far, in [0, 1]."""
        for name in self._claimed.keys() - self._quotas.keys():
            self._quotas[name] = float(self._claimed[name].quota.mean())
        return {name: self._quotas.get(name, 0.0) for name in self._scan.sites}

    def explain(self) -> Explanation:
        """What is done where: one row a layer, to read as data or to print as a table.

        Rank and quota tell how much is claimed; `passing` is the share of what the recent steps
        wanted to change that was let through, None before the first step of a later task.
        """
        plans = [guard.prepare() for guard in self._guards]
        free = {
            name: self._context.protected.free(name, site.active())
            for name, site in self._scan.sites.items()
            if site.active()
        }
        ranks = {name: 0 if space is None else space.rank for name, space in free.items()}
        return explain(self._scan, ranks, self.quota(), plans)

    def spectra(self) -> dict[str, Tensor]:
        """Singular values of A, layer by layer, descending: `[d]`, or `[groups, d]`."""
        return {
            name: conceptor.singular_values.squeeze(0) for name, conceptor in self._claimed.items()
        }

    def conceptors(self) -> dict[str, Conceptor]:
        """A, the space claimed so far, layer by layer (a batch of one conceptor a group)."""
        return dict(self._claimed)

    def tasks(self) -> list[dict[str, Conceptor]]:
        """Every task's own conceptors, layer by layer, where `keep_tasks` is on; else nothing."""
        return [dict(task) for task in self._tasks]

    def refresh(self) -> Shield:
        """Look at the model again, after layers were added, replaced, frozen or unfrozen.

        `guard` and `remember` do this by themselves.
        """
        self._check_attached()
        reshard(self.model)
        found = self._rescan()
        self._set_anchors(found, new_only=True)
        if not found.same(self._scan):
            self._scan = found
            self._changed()
        return self

    def detach(self) -> None:
        """Take all hooks off model and optimizers; the weights stay, the shield is at its end."""
        for guard in self._guards:
            guard.remove()
        for handle in self._statistics:
            handle.remove()
        self._guards, self._statistics, self._attached = [], [], False
        _ATTACHED.pop(self.model, None)

    # --- state ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered, as plain dictionaries, tensors and numbers."""
        return shield_state.pack(self)

    @_lasting()
    def load_state_dict(
        self,
        state: Mapping[str, Any],
        *,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
    ) -> LoadReport:
        """Take over what another shield has remembered, on any device and dtype.

        Args:
            strict: refuse a state that does not fit in every layer; else load what fits. The
                report names what was loaded, is missing, left over, or of another shape.
            rename: old layer name -> new layer name.

        Raises:
            ValueError: damaged or foreign state, or, with `strict`, one that does not fit.
        """
        self.refresh()
        report = shield_state.unpack(self, state, strict=strict, rename=rename or {})
        self._hold_statistics()
        self._claims_changed()
        return report

    def save(self, path: str | Path) -> None:
        """Write the state as a safetensors file, whole or not at all."""
        shield_state.save(self.state_dict(), path)

    def load(
        self, path: str | Path, *, strict: bool = True, rename: Mapping[str, str] | None = None
    ) -> LoadReport:
        """Read a file that `save` wrote; see `load_state_dict`."""
        return self.load_state_dict(shield_state.load(path), strict=strict, rename=rename)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Shield belongs to one model and its optimizers and cannot be copied or pickled; "
            "save shield.state_dict(), and load it into Shield(other_model)"
        )

    def __repr__(self) -> str:
        quota = self.quota()
        mean = sum(quota.values()) / max(1, len(quota))
        tasks = f"{self.n_tasks} task{'' if self.n_tasks == 1 else 's'}"
        return f"Shield({len(quota)} layers, {tasks}, mean quota {mean:.2f})"

    # --- inside ---------------------------------------------------------------------------

    @_lasting()
    def _conceptors(
        self, batches: Any, feed: Feed | None, limit: int | None, progress: bool
    ) -> tuple[dict[str, Conceptor], dict[str, Tensor]]:
        """The conceptors of one task's data, and stiffness, layer by layer; changes nothing."""
        self.refresh()
        if limit is not None:
            limit = checks.whole(limit, "limit", 1)
        moments = collect(
            self.model,
            self._scan.sites,
            batches,
            feed=feed,
            limit=limit,
            rows=self.rows,
            seed=self.seed + self.n_tasks,
            dtype=self.dtype,
            sketch=self._sketch_rank,
            progress=progress,
        )
        found, stiffness = {}, {}
        for name in list(moments):  # one at a time: sums and conceptors need not all fit at once
            own = moments.pop(name)
            found[name] = self._conceptor(name, own)
            choice = self._aperture_of(name)
            if isinstance(choice, Auto) and choice.pull and not self.hard:
                odds = found[name].odds_trace().clamp_min(1e-300)  # [g], of Q = α² R
                stiffness[name] = choice.pull * self._weight_of_drift(name, own).to(odds) / odds
        return found, stiffness

    def _conceptor(self, name: str, moments: Moments | SketchedMoments) -> Conceptor:
        """The conceptors of one task's rows at one site."""
        choice = self._aperture_of(name)
        if isinstance(choice, (Auto, Quota, Energy)):
            dim = moments.dim
            conceptor = moments.conceptor(choice.aperture(moments.eigenvalues(), dim, self.hard))
        else:
            self._check_precision(name, moments.energy(), choice)
            conceptor = moments.conceptor(choice)
        if not self.hard:
            return conceptor
        limit = self._rank_of(name, conceptor.dim)
        if limit is not None and limit < conceptor.dim:
            # directions of earlier tasks come first; new ones take what is left
            held = self._claimed.get(name)
            taken = 0 if held is None else int((held.singular_values > 0.5).sum(-1).max())
            conceptor = conceptor.strongest(max(0, limit - taken))
        return conceptor.harden()

    def _weight_of_drift(self, name: str, moments: Moments | SketchedMoments) -> Tensor:
        """tr R `[g]` over E|W x|², so that drift is seen in units of what the layer gives out.

        A layer that gives out nothing, as adapters do at first, has a hundredth of usual weights.
        """
        site = self._scan.sites[name]
        whole = {id(p): site.whole(p.data) for p in site.parameters}
        matrix = site.matrix(site.parameters, whole)  # [g, out, d]
        inputs, outputs = moments.output_energy(matrix)
        out, dim = matrix.shape[1:]
        least = 1e-4 * inputs.sum() * (out / (3 * dim))
        return inputs / torch.maximum(outputs, least).clamp_min(1e-300)

    @_lasting()
    def _joined(
        self, claimed: Mapping[str, Conceptor], task: Mapping[str, Conceptor]
    ) -> dict[str, Conceptor]:
        """A ∨ C at every site; sketched ones stay within their rank."""
        joined = dict(claimed)
        for name, conceptor in task.items():
            site = self._scan.sites.get(name)
            device = conceptor.device if site is None else site.parameters[0].device
            both = conceptor.to(device)
            if name in claimed:
                both = claimed[name].to(device) | both
            limit = self._sketch_rank(name, both.dim)
            if limit is not None and both.is_factored and both.rank > limit:
                both = both.strongest(limit)
            joined[name] = both
        return joined

    def _check_precision(self, name: str, energy: Tensor, alpha: float) -> None:
        """Singular values mean nothing where aperture² times rounding is not small."""
        top = float(energy.max())
        if torch.finfo(self.dtype).eps * top * alpha**2 > 0.1:
            raise ValueError(
                f"{self.dtype} is too small for aperture {alpha} at layer {name!r}: with "
                f"activations of this size (mean square norm {top:.3g}), rounding "
                f"errors count as directions in use; lower the aperture"
                f"{', or use dtype=torch.float64' if self.dtype == torch.float32 else ''}"
            )

    def _aperture_of(self, name: str) -> Aperture:
        if not isinstance(self.aperture, Mapping):
            return self.aperture
        for pattern, value in self.aperture.items():
            if matches([name], [pattern]):
                return value
        raise ValueError(
            f"no aperture for layer {name!r}: the patterns {list(self.aperture)} do not fit it; "
            f"add a default, {{..., '*': 9.0}}"
        )

    def _rank_of(self, name: str, dim: int) -> int | None:
        if self.rank is None:
            return None
        return max(1, round(self.rank * dim)) if isinstance(self.rank, float) else self.rank

    def _sketch_rank(self, name: str, dim: int) -> int | None:
        """How many directions of a layer are kept, where d x d is too much."""
        if dim <= self.dense_limit:
            return None
        return self._rank_of(name, dim) or max(1, dim // 8)

    def _rescan(self) -> Scan:
        found = scan(self.model, self.exclude, self.freeze)
        if found.unsupported and self.unsupported == "error":
            listed = "\n".join(f"  {name} ({why})" for name, why in found.unsupported.items())
            raise ValueError(
                f"these trainable parameters cannot be shielded:\n{listed}\nchoose "
                f"unsupported='freeze' (fixed after the first task) or 'ignore' (may forget), "
                f"exclude them by name, or register a rule for their layer"
            )
        if self.unsupported == "freeze":
            parameters = dict(self.model.named_parameters())
            found.frozen.update((name, parameters[name]) for name in found.unsupported)
        if not found.sites:
            raise ValueError(
                f"{type(self.model).__name__} has no trainable parameters that can be shielded; "
                f"is everything frozen or excluded?"
            )
        for name in found.sites:
            choice = self._aperture_of(name)
            pulls = isinstance(choice, Auto) and choice.pull > 0 and not self.hard
            if pulls and self.project == "inputs":
                raise ValueError(
                    f'project="inputs" cannot pull layer {name!r} back, as its automatic aperture '
                    f"wants; give a number, aperture=9.0, or Auto(pull=0)"
                )
        return found

    @_lasting()
    def _set_anchors(self, found: Scan | None = None, *, new_only: bool = False) -> None:
        """W_previous: the weights as the last task left them, where something is drawn to them.

        Those that only a pull needs, at the beginning of a task, wait in main memory.
        """
        names = {id(p): name for name, p in self.model.named_parameters()}
        for site in (found or self._scan).sites.values():
            pulled = isinstance(self._aperture_of(site.name), Auto) and self.n_tasks > 0
            if not (pulled or self.increment_decay):
                continue
            for parameter in site.parameters:
                name = names[id(parameter)]
                held = self._anchors.get(name)
                if not new_only or held is None or held.shape != parameter.shape:
                    value = parameter.data.clone()
                    stays = self.increment_decay or is_sharded(value)
                    self._anchors[name] = value if stays else to_host(value)

    def _make_context(self, version: int) -> Context:
        anchors: dict[int, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            held = self._anchors.get(name)
            if held is None:
                continue
            if self.increment_decay:
                self._anchors[name] = held = held.to(parameter.device, parameter.dtype)
            anchors[id(parameter)] = held
        protected = Protected(
            sites=self._scan.sites,
            claims={name: self._claim(name) for name in self._claimed if name in self._scan.sites},
            frozen=self._scan.frozen if self.n_tasks else {},
            anchors=anchors,
            resumed=dict(self._resumed),
        )
        return Context(
            version=version,
            protected=protected,
            increment_decay=self.increment_decay,
            by_inputs=self.project == "inputs",
            held=lambda: Counter(id(p) for guard in self._guards for p in guard.parameters()),
            warn=self._warn_if_stuck,
        )

    def _claim(self, name: str) -> Claim:
        claimed = self._claimed[name]
        auto = isinstance(self._aperture_of(name), Auto) and not self.hard
        return Claim(
            claimed,
            rank=self._rank_of(name, claimed.dim),
            least=_LEAST if auto else 0.0,
            stiffness=self._stiffness.get(name) if auto else None,
        )

    @_lasting()
    def _changed(self) -> None:
        """Tell the guards, and have them ready before the next forward pass."""
        self._context = self._make_context(self._context.version + 1)
        for guard in self._guards:
            guard.prepare()

    def _claims_changed(self) -> None:
        self._quotas = {}
        self.quota()
        self._changed()
        # what the guards need is made; what it was made of may leave the GPU
        self._claimed = {name: _stowed(c) for name, c in self._claimed.items()}

    def _hold_statistics(self) -> None:
        if self.batchnorm == "freeze" and self.n_tasks and not self._statistics:
            self._statistics = hold_statistics(self.model)

    def _warn_if_full(self) -> None:
        full = {
            name: quota
            for name, quota in self.quota().items()
            if quota > self.warn_at_quota
            and name not in self._full
            # a channel of a norm layer has two numbers; it is full after one task by its nature
            and self._claimed[name].dim > 2
        }
        self._full |= set(full)
        if full:
            listed = ", ".join(f"{name} ({quota:.1%})" for name, quota in full.items())
            warnings.warn(
                f"little space is left for further tasks in: {listed}. Lower the aperture there, "
                f"widen the layers, or forget a task",
                ShieldFullWarning,
                stacklevel=3,
            )

    def _warn_if_stuck(self, shares: Mapping[str, float]) -> None:
        """After some steps of a task: where hardly anything passes, it is not learned there."""
        stuck = {
            name: share
            for name, share in shares.items()
            if self._claimed[name].dim > 2
            and share < (_STUCK_AUTO if isinstance(self._aperture_of(name), Auto) else _STUCK)
        }
        if stuck:
            listed = ", ".join(f"{name} ({share:.1%})" for name, share in stuck.items())
            warnings.warn(
                f"hardly anything of this task's steps passes in: {listed}. Earlier tasks use the "
                f"same directions there: lower the aperture, widen the layers, forget a task, or "
                f"learn the last layer in closed form; shield.explain() tells more",
                ShieldFullWarning,
                stacklevel=2,
            )

    def _check_attached(self) -> None:
        if not self._attached:
            raise ValueError("this shield was detached; make a new one with Shield(model, ...)")


def _combined(
    claimed: Mapping[str, Conceptor],
    held: Mapping[str, Tensor],
    task: Mapping[str, Conceptor],
    stiffness: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """c such that c Q is the sum of all tasks' stiffness: a mean, weighted by tr Q.

    `held` is c of what is claimed so far, `stiffness` that of one more task.
    """
    found = dict(held)
    for name, new in stiffness.items():
        old = found.get(name)
        if old is None or name not in claimed:
            found[name] = new
            continue
        before, now = (c[name].odds_trace().to(new) for c in (claimed, task))
        total = (before + now).clamp_min(1e-300)
        found[name] = (old.to(new) * before + new * now) / total
    return found


def _stowed(conceptor: Conceptor) -> Conceptor:
    """Large matrices wait in main memory: a GPU has better use for its own."""
    if conceptor.dim < _STOWED or conceptor.device.type != "cuda":
        return conceptor
    return conceptor._map(lambda tensor, _: to_host(tensor))


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile and DistributedDataParallel wrappers."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def reshard(model: nn.Module) -> None:
    """Cut the parameters of FSDP2 modules again, which a forward pass leaves gathered."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            module.reshard()  # type: ignore[operator]


def _refuse_second(model: nn.Module) -> None:
    parts = set(model.modules())
    for other, reference in list(_ATTACHED.items()):
        if reference() is not None and (other in parts or model in set(other.modules())):
            raise ValueError(
                f"this {type(model).__name__} already has a shield; use that one, or call its "
                f"detach() first"
            )


def _innermost(optimizer: Any) -> Optimizer:
    """The torch optimizer inside wrappers, as accelerate and others make them."""
    inner, seen = optimizer, 0
    while isinstance(getattr(inner, "optimizer", None), Optimizer) and seen < 10:
        inner, seen = inner.optimizer, seen + 1
    if not isinstance(inner, Optimizer):
        raise TypeError(f"guard needs a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return inner


def _check_inputs(optimizer: Optimizer) -> None:
    decays = any(group.get("weight_decay") for group in optimizer.param_groups)
    if type(optimizer) is not torch.optim.SGD or decays:
        raise ValueError(
            f'project="inputs" is for torch.optim.SGD without weight decay, got '
            f"{type(optimizer).__name__}{' with weight decay' if decays else ''}; make the shield "
            f'with project="gradients"'
        )


def _check_apertures(value: Any) -> Aperture | dict[str, Aperture]:
    if isinstance(value, Mapping):
        if not value:
            raise ValueError("aperture is an empty mapping; give {'*': 9.0} or a number")
        return {str(k): _check_aperture(v) for k, v in value.items()}
    return _check_aperture(value)


def _check_aperture(value: Any) -> Aperture:
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f'aperture must be "auto", a number, Quota or Energy, got {value!r}')
        return Auto()
    if isinstance(value, (Auto, Quota, Energy)):
        return value
    return float(checks.aperture(value, torch.Size(()), torch.zeros(1, dtype=torch.float64)))


def _check_rank(rank: Any) -> int | float | None:
    if rank is None:
        return None
    if isinstance(rank, float):
        return checks.number(rank, "rank (a share of d)", 0.0, 1.0, open_low=True)
    return checks.whole(rank, "rank", 1)


def _patterns(value: Any, name: str) -> list[str]:
    patterns = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"{name} takes name patterns (strings), got {patterns!r}")
    return patterns


def _one_of(value: Any, name: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")
    return str(value)
