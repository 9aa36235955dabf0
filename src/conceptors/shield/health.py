"""Warn about everything that leaves remembered tasks unprotected, or later tasks unlearned."""

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from conceptors._internal.checks import outside
from conceptors._internal.distributed import is_sharded
from conceptors._internal.precision import exactly, full
from conceptors.algebra.conceptor import Conceptor
from conceptors.layers.statistics import freeze_statistics
from conceptors.shield.blocks import WeightBlock, matches
from conceptors.shield.guard import Guards

_FULL = 0.95  # a layer with a larger quota is full
_STUCK = 0.05  # a layer hardly learns if a smaller share of its gradients is applied
_STUCK_AUTO = 0.01  # the same for aperture="auto", whose directions stay soft
_DROPPED = 1e-12  # of a sketch's largest direction: less is rounding

_PROBES = 16  # random inputs of a fingerprint
_ROWS, _NUMBERS = 256, 2**18  # outputs that are compared; fewer for many groups
_SOFT = 0.2  # soft conceptors let weights move a little
_HARD, _ROUNDING = 1e-3, 1e7  # hard tolerance: the smaller of 1e-3 and 1e7 eps

_EXCERPT = 4096  # numbers of a buffer, or of a layer's weights after loading, that are compared
_TOLERATED = 1e-2  # relative change of an excerpt, such as rounding to bfloat16


class UnprotectedWarning(UserWarning):
    """A remembered task is not fully protected."""


class ShieldFullWarning(UserWarning):
    """Some layers have few free directions left, or hardly learn the current task."""


_TEXTS = {
    "weights": "weights have moved in protected directions, where guarded steps do not move them: "
    "{names}. The model's outputs on remembered tasks have changed. Guard every optimizer of the "
    "model, create new optimizers after layers are replaced, load model and shield from the same "
    "checkpoint, and restore the best weights before you call remember",
    "loaded": "the shield was loaded, but the model has other weights than when the shield was "
    "saved: {names}. The shield protects these weights now, not those of the remembered tasks. "
    "Load the model and the shield from the same checkpoint",
    "buffers": "buffers have changed since a task was remembered: {names}. The model's outputs on "
    "remembered tasks change with them, because a shield protects only weights. Restore the "
    "buffers, collect statistics on a copy of the model, or exclude them by name, exclude={some}",
    "missed": "layers were trained that no sample passed to remember has reached: {names}. Nothing "
    "of this task is protected there. Pass remember batches, or a feed(model, batch), that use "
    "these layers. Exclude layers that do not affect the model's outputs, exclude={some}",
    "woken": "layers learn now that were frozen when a task that uses them was remembered: "
    "{names}. Nothing of that task is protected there. Keep them frozen (requires_grad=False), or "
    "unfreeze them before remember is called",
    "skipped": "NaN or infinite activations have entered a layer in training: {names}. The data "
    "since the last time that remember_every was due is not remembered. Check the data, and the "
    "model's weights",
    "stranger": "{optimizer} is not guarded, but steps weights of remembered tasks: {names}. The "
    "model will forget these tasks. Call shield.guard(optimizer) before its first step",
    "dropped": "hard=True does not protect all directions of these wide layers: {names}. Their "
    "inputs need more directions than their sketch stores. Create the shield with rank=1.0 for "
    "exact matrices, or with a larger rank for a larger sketch",
    "replaced": "a shield that had remembered {tasks} of this {names} is gone, and the new shield "
    "does not protect them. Use one shield for all tasks, or load its saved state. Call detach() "
    "on a shield that is not needed any more",
    "resumed": "the shield had remembered {before} tasks, but the resumed checkpoint contains only "
    "{names} of them. The later tasks are not protected any more. {remedy}",
    "full": "few free directions are left in: {names}. These layers will hardly learn later tasks. "
    "Create the shield with {remedy}, and remember the tasks again",
    "stuck": "{what} in: {names}. Earlier tasks use the same directions, so these layers hardly "
    "learn. Lower their aperture (with hard=True, use Energy(0.9)), start with wider layers, "
    "forget a task, or replace the last layer by a Readout. shield.explain() shows all layers",
}


def _warn(kind: str, names: Sequence[str], **words: object) -> None:
    """Issue a warning about these names, if there are any, at the line of the user's code."""
    if names:
        category = ShieldFullWarning if kind in ("full", "stuck") else UnprotectedWarning
        listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        text = _TEXTS[kind].format(names=listed, some=list(names[:1]), **words)
        warnings.warn(text, category, stacklevel=outside())


class Health:
    """Compare what the shield and the guards report with what was accepted, and warn.

    Attributes:
        has_accepted: whether weights were accepted since a state was loaded.
        resting: layers that tasks used while they were frozen, and that have not learned since.
    """

    def __init__(self, hard: bool, seed: int, exclude: list[str], follows_batchnorm: bool) -> None:
        self.has_accepted, self.resting = False, set[str]()
        self._hard, self._seed = hard, seed
        self._exclude, self._follows_batchnorm = exclude, follows_batchnorm
        self._lock = RLock()
        self._prints: dict[str, Fingerprint] = {}
        self._buffers: dict[str, Tensor] = {}  # excerpts
        self._loaded: dict[str, Tensor] = {}  # excerpts of the weights beside a loaded state
        self._foreign: dict[str, float] = {}  # how far other code has moved weights between steps
        self._reported: defaultdict[str, set[str]] = defaultdict(set)  # names by kind of warning
        self._strangers: WeakSet[Optimizer] = WeakSet()  # seen without a guard

    def check_thread(self) -> None:
        """Raise RuntimeError if another thread is at work."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "this shield is in use by another thread, and two threads would corrupt it; wait "
                "for that thread, or use a lock"
            )
        self._lock.release()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work in one thread, and not in inference mode, whose tensors optimizers cannot change."""
        self.check_thread()
        with self._lock, torch.inference_mode(False), torch.no_grad():
            yield

    # --- weights and buffers ------------------------------------------------------------------

    @exactly()
    def accept(
        self, blocks: Mapping[str, WeightBlock], claimed: Mapping[str, Conceptor], model: nn.Module
    ) -> None:
        """Accept the current weights and buffers as those that the remembered tasks need."""
        _warn("loaded", _changed(self._loaded, excerpts(blocks, self._loaded)))
        self._prints = fingerprints(blocks, claimed, self._seed)
        self._buffers = self._watched_buffers(model) if claimed else {}
        self.has_accepted, self._loaded, self._foreign = True, {}, {}
        self._reported["weights"].clear()
        self._strangers.clear()

    def loaded(self, resting: Collection[str], weights: Mapping[str, Tensor]) -> None:
        """Begin again with a loaded state; its model may be loaded until the next step."""
        self.resting, self._loaded = set(resting), dict(weights)
        self.has_accepted, self._prints, self._buffers = False, {}, {}
        self._strangers.clear()

    @exactly()
    def look(
        self,
        blocks: Mapping[str, WeightBlock],
        model: nn.Module,
        moved: Mapping[str, float],
        stepped: Collection[str],
        before_step: bool = False,
    ) -> None:
        """Warn about weights that other code than guarded steps moved in protected directions.

        With soft conceptors, guarded steps move blocks there too, those that were `stepped`. How
        far other code has `moved` them since is then added up from step to step.
        """
        self.look_at_buffers(model)
        since = {name: self._foreign.get(name, 0.0) + drift for name, drift in moved.items()}
        if before_step:
            self._foreign |= since
        far = {}
        for name in [name for name in blocks if name in self._prints]:
            block, before = blocks[name], self._prints[name]
            coarsest = max(torch.finfo(x.dtype).eps for x in [*block.parameters, before.value])
            drift, tolerance = since.get(name, 0.0), _SOFT
            if self._hard or name not in stepped:
                drift, tolerance = before.drift(block), min(_HARD, _ROUNDING * coarsest)
            if drift > max(tolerance, 8 * coarsest):
                size = f"{drift:.0%}" if drift >= 0.005 else f"{drift:.0e}"
                far[name] = f"by {size}" if math.isfinite(drift) else "of another shape"
        _warn("weights", [f"{name} ({far[name]})" for name in self._new("weights", far)])

    def look_at_buffers(self, model: nn.Module) -> None:
        """Warn about buffers that have changed, such as BatchNorm's running statistics."""
        changed = _changed(self._buffers, self._watched_buffers(model))
        _warn("buffers", self._new("buffers", changed))

    def _watched_buffers(self, model: nn.Module) -> dict[str, Tensor]:
        """Return excerpts of the buffers that must not change."""
        layers = model.modules() if self._follows_batchnorm else ()
        following = [layer for layer in layers if isinstance(layer, _NormBase)]
        followed = {id(b) for layer in following for b in layer.buffers(recurse=False)}
        return {
            name: excerpt(buffer)
            for name, buffer in model.named_buffers()
            if buffer.is_floating_point()
            and id(buffer) not in followed
            and not (buffer.is_meta or is_sharded(buffer) or matches([name], self._exclude))
        }

    def _new(self, kind: str, names: Iterable[str]) -> list[str]:
        """Return the names that were not reported in this kind of warning, and record them."""
        new = [name for name in names if name not in self._reported[kind]]
        self._reported[kind].update(new)
        return new

    # --- layers -------------------------------------------------------------------------------

    def remembered(
        self, blocks: Mapping[str, WeightBlock], reached: Collection[str], trained: set[int]
    ) -> None:
        """Warn about layers that were trained, but not reached by the samples of a task.

        Weights that are shared with a layer that was reached do not count. `trained` are ids of
        parameters that had gradients.
        """
        shared = {id(p) for name in reached if name in blocks for p in blocks[name].parameters}
        alone = trained - shared
        used = [n for n, block in blocks.items() if any(id(p) in alone for p in block.active())]
        _warn("missed", self._new("missed", [name for name in used if name not in reached]))

    def wake(self, learning: Iterable[str]) -> None:
        """Warn about layers that learn now and were frozen when a task used them."""
        woken = [name for name in learning if name in self.resting]
        self.resting.difference_update(woken)
        _warn("woken", woken)

    def fill(self, quotas: Mapping[str, float]) -> None:
        """Warn once about each layer that has become full."""
        names = [name for name, quota in quotas.items() if quota > _FULL]
        self._reported["full"].intersection_update(names)
        remedy = "aperture=Energy(0.9)" if self._hard else "a lower aperture for them"
        full_now = [f"{name} ({quotas[name]:.1%} protected)" for name in self._new("full", names)]
        _warn("full", full_now, remedy=remedy)

    def skip(self, layer: str) -> None:
        """Warn once about each layer whose inputs in training were not finite."""
        _warn("skipped", self._new("skipped", [layer]))

    def forecast(self, shares: Mapping[str, float], auto: Mapping[str, bool]) -> None:
        """Warn about layers that will hardly learn a task."""
        names = [f"{name} ({shares[name]:.1%})" for name in stuck(shares, auto)]
        _warn("stuck", names, what="hardly any of this task's gradients will be applied")

    def slow(self, shares: Mapping[str, float]) -> None:
        """Warn about a task whose gradients stay large while little of them is applied."""
        names = [f"{name} ({share:.1%})" for name, share in shares.items() if share < _STUCK]
        what = "this task is hardly learned: gradients stay large, and little of them is applied"
        _warn("stuck", names, what=what)

    def check_stranger(self, optimizer: Optimizer, guards: Guards) -> None:
        """Warn if an optimizer that is not guarded steps protected layers.

        It may be part of a guarded optimizer, which is stepping these parameters now.
        """
        if guards.of(optimizer) is not None or optimizer in self._strangers:
            return
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        stepped = {id(p) for p in parameters if p.grad is not None}
        stepped -= {id(p) for guard in guards if guard.in_step for p in guard.parameters()}
        if not stepped:
            return
        self._strangers.add(optimizer)
        blocks, frozen = guards.protected.blocks, guards.protected.frozen
        protected = [(n, p) for n in guards.protected.claims for p in blocks[n].active()]
        names = {n: None for n, p in [*protected, *frozen.items()] if id(p) in stepped}
        _warn("stranger", list(names), optimizer=type(optimizer).__name__)


class Fingerprint(NamedTuple):
    """The product W Z of rows of a block `[g, out, d]` and inputs `[g, d, k]` like old ones."""

    inputs: Tensor
    rows: slice
    value: Tensor

    def drift(self, block: WeightBlock) -> float:
        """Compute |ΔW Z| / |W Z|, also after rows were added; inf for other shapes."""
        matrix = full(block.matrix(block.parameters))
        rows, inputs, before = matrix[:, self.rows], self.inputs.to(matrix), self.value.to(matrix)
        if matrix.shape[::2] != inputs.shape[:2] or rows.shape[1] != before.shape[1]:
            return float("inf")
        usual = rows.norm() * inputs.norm()
        size = before.norm().maximum(0.1 * usual / inputs.shape[1] ** 0.5)  # W Z may be 0
        return float((rows @ inputs - before).norm() / size.clamp_min(1e-30))


def fingerprints(
    blocks: Mapping[str, WeightBlock], claimed: Mapping[str, Conceptor], seed: int
) -> dict[str, Fingerprint]:
    """Compute the fingerprints of all blocks with claims that this process can read."""
    prints = {}
    for name, block in blocks.items():
        if name in claimed and is_readable(block, rows=True):
            matrix = full(block.matrix(block.parameters))
            groups, out, _ = matrix.shape
            step = math.ceil(out / max(4, min(_ROWS, _NUMBERS // groups))) or 1
            rows, inputs = slice(0, out, step), _like_remembered(claimed[name], seed).to(matrix)
            prints[name] = Fingerprint(inputs, rows, matrix[:, rows] @ inputs)
    return prints


def _like_remembered(claimed: Conceptor, seed: int) -> Tensor:
    """Draw inputs `[g, d, k]` with the second moment of remembered rows, R ∝ U diag(odds) Uᵀ."""
    form, count = claimed.form, min(_PROBES, claimed.dim)
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(*claimed.batch_shape, claimed.dim, count, generator=draw).to(form.tensor)
    vectors, odds, other_odds = form.spectrum()
    total = torch.where(odds.isfinite(), odds, 0.0).sum().clamp_min(1e-30)
    sizes = torch.where(odds.isfinite(), (odds / total).sqrt(), 1.0)
    other = float(math.isinf(other_odds))  # the size of the directions beyond these vectors
    return other * noise + vectors @ ((sizes - other).unsqueeze(-1) * (vectors.mT @ noise))


def is_readable(block: WeightBlock, rows: bool = False) -> bool:
    """Whether this process has a whole block, or with `rows` at least whole rows of it."""
    may_split = rows and block.spec.rows_first
    return not any(p.is_meta or (is_sharded(p.data) and not may_split) for p in block.parameters)


def excerpt(tensor: Tensor) -> Tensor:
    """Copy the first numbers of a tensor, which added rows never precede."""
    return tensor.detach().flatten()[:_EXCERPT].nan_to_num().to("cpu", copy=True)


def excerpts(blocks: Mapping[str, WeightBlock], names: Collection[str]) -> dict[str, Tensor]:
    """Copy the first numbers of the weights of blocks that this process can read."""
    readable = [name for name in names if name in blocks and is_readable(blocks[name])]
    return {name: excerpt(blocks[name].parameters[0]) for name in readable}


def _changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[str]:
    """Return the names of excerpts that differ by more than rounding; tensors may have grown."""
    changed = []
    for name in [name for name in before if name in now]:
        size = min(before[name].numel(), now[name].numel())
        old, new = (x[name].flatten()[:size].double().cpu() for x in (before, now))
        if not bool((new - old).norm() <= _TOLERATED * old.norm()):
            changed.append(name)
    return changed


def stuck(shares: Mapping[str, float], auto: Mapping[str, bool]) -> list[str]:
    """Return the layers that hardly learn, from the applied shares of their gradients."""
    least = {name: _STUCK_AUTO if soft else _STUCK for name, soft in auto.items()}
    return [name for name, share in shares.items() if name in least and share < least[name]]


def warn_of_dropped(shares: Mapping[str, float]) -> None:
    """Warn about layers whose sketch is too small for all directions, with `hard=True`."""
    _warn("dropped", [name for name, share in shares.items() if share > _DROPPED])


def warn_of_lost_tasks(before: int, now: int, remedy: str) -> None:
    """Warn if a shield has fewer tasks after it was loaded than before."""
    if now < before:
        _warn("resumed", [str(now)], before=before, remedy=remedy)


# --- one shield for each model ------------------------------------------------------------------

_Check = Callable[[Any, Optimizer], None]  # of a shield, before an optimizer's step

_SHIELDS: WeakKeyDictionary[nn.Module, tuple[ref[Any], _Check]] = WeakKeyDictionary()
_TASKS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # remembered by its shield
_HOOK: list[RemovableHandle] = []  # one for all shields


def claim_model(model: nn.Module, shield: object, before_any_step: _Check) -> None:
    """Give a model its one shield, and call a function of it before each optimizer's step.

    Warns if an earlier shield and its tasks are lost.
    """
    parts = set(model.modules())
    for other, (owner, _) in list(_SHIELDS.items()):
        if owner() is not None and (other in parts or model in set(other.modules())):
            raise ValueError(
                f"this {type(model).__name__}, a part of it, or a module that contains it already "
                f"has a shield, and a model can have only one; use that shield, or call its "
                f"detach() first"
            )
    lost = _TASKS.pop(model, 0)
    if lost:
        tasks = f"{lost} task{'s'[: lost > 1]}"
        _warn("replaced", [type(model).__name__], tasks=tasks)
    _SHIELDS[model] = ref(shield), before_any_step  # a WeakMethod fails when Python 3.11 exits
    if not _HOOK:
        _HOOK.append(register_optimizer_step_pre_hook(_before_any_step))


def _before_any_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    for shield, check in [(owner(), check) for owner, check in _SHIELDS.values()]:
        if shield is not None:
            check(shield, optimizer)


def follow_tasks(model: nn.Module, n_tasks: int, batchnorm: bool) -> None:
    """Note the tasks of a model's shield, and freeze the statistics of layers if there are any."""
    _TASKS[model] = n_tasks
    freeze_statistics(model, n_tasks > 0, batchnorm)


def release_model(model: nn.Module) -> None:
    """Record that a model has no shield, and let its statistics follow the data again."""
    freeze_statistics(model, False)
    _SHIELDS.pop(model, None)
    _TASKS.pop(model, None)
    if _HOOK and not _SHIELDS:
        _HOOK.pop().remove()
