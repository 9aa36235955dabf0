"""The conceptors of all remembered tasks, together and, with `keep_tasks`, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from conceptors._internal.distributed import whole
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import OddsForm, SpectrumForm
from conceptors.algebra.tasks import join_novel
from conceptors.layers.bare import is_bare
from conceptors.moments.inputs import InputMoments, rounding
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.options import Protection
from conceptors.shield.projection import Claim

_STOWED = 2048  # layers with at least this many inputs store their claims in main memory
_BATCHED = 1024  # on a GPU, equal blocks with up to this many inputs are decomposed together
_MODERATE = 1e4  # the largest odds for which a decomposition in float32 is accurate enough


@dataclass
class Claims:
    """The conceptors of all layers, and the stiffness of their pulls.

    Attributes:
        conceptors: by layer, of all tasks or of one; a batch of one conceptor per group.
        stiffness: c `[g]` by layer, for layers with a pull; see `FreeSpace.pull`.
    """

    conceptors: dict[str, Conceptor] = field(default_factory=dict)
    stiffness: dict[str, Tensor] = field(default_factory=dict)

    def without(self, names: Collection[str]) -> Claims:
        """Leave out layers."""
        conceptors = {n: c for n, c in self.conceptors.items() if n not in names}
        return Claims(conceptors, {n: c for n, c in self.stiffness.items() if n not in names})

    def mapped(self, change: Callable[[str, Conceptor], Conceptor]) -> Claims:
        """Change the conceptors, which `change` receives with their names."""
        changed = {name: change(name, conceptor) for name, conceptor in self.conceptors.items()}
        return Claims(changed, self.stiffness)

    def stowed(self) -> Claims:
        """Move large matrices to main memory, to save memory of the GPU."""
        return self.mapped(lambda _, c: c.to("cpu") if c.dim >= _STOWED else c)


@dataclass
class Remembered:
    """The claims of all tasks together, and of each task if they are stored separately."""

    claimed: Claims = field(default_factory=Claims)
    tasks: list[Claims] = field(default_factory=list)
    n_tasks: int = 0
    sizes: list[float] = field(default_factory=list)  # since the last task, see `Guard._scale_pull`

    def with_task(
        self,
        task: Claims,
        blocks: Mapping[str, WeightBlock],
        protection: Protection,
        keep: bool,
        known: float,
    ) -> Remembered:
        """Add a task; `keep` also stores it separately. For `known` see `join_novel`."""
        claimed = join(self.claimed, task, blocks, protection, known)
        tasks = [*self.tasks, task.stowed()] if keep else self.tasks
        return Remembered(claimed, tasks, self.n_tasks + 1)

    def without_task(
        self, index: int, blocks: Mapping[str, WeightBlock], protection: Protection
    ) -> Remembered:
        """Remove one of the tasks that are stored separately."""
        tasks = [task for i, task in enumerate(self.tasks) if i != index]
        claimed = Claims()
        for task in tasks:
            claimed = join(claimed, task, blocks, protection)
        return Remembered(claimed, tasks, self.n_tasks - 1)

    def without(self, names: Collection[str]) -> Remembered:
        """Free all directions of some layers."""
        tasks = [task.without(names) for task in self.tasks]
        return Remembered(self.claimed.without(names), tasks, self.n_tasks)

    def check_sizes(self, blocks: Mapping[str, WeightBlock]) -> None:
        """Raise ValueError if a layer has other inputs than when tasks were remembered."""
        for name, why in misfits(self.claimed, blocks).items():
            raise ValueError(
                f"layer {name!r} {why}, so its protected directions do not fit. Only outputs may "
                f"be added. Add a layer beside it, or create a new Shield and remember the old "
                f"tasks' data again"
            )

    def quota(self, name: str) -> float:
        """Return the share of a layer's input space that is claimed."""
        conceptor = self.claimed.conceptors.get(name)
        return 0.0 if conceptor is None else float(conceptor.quota.mean())

    def claims(self, blocks: Collection[str], protection: Protection) -> dict[str, Claim]:
        """Return the claims of these layers, as guards need them."""
        auto = {name for name in blocks if protection.is_auto(name)}
        return {
            name: Claim(
                conceptor,
                rank=protection.rank_of(conceptor.dim),
                is_auto=name in auto,
                stiffness=self.claimed.stiffness.get(name) if name in auto else None,
                room=protection.room(name) if conceptor.dim > 2 else 0.0,
            )
            for name, conceptor in self.claimed.conceptors.items()
            if name in blocks
        }


def size_of(conceptor: Conceptor) -> tuple[int, int]:
    """(g, d): the number of groups, and of inputs of each; see `WeightBlock.size`."""
    return conceptor.batch_shape[0], conceptor.dim


def misfits(claims: Claims, blocks: Mapping[str, WeightBlock]) -> dict[str, str]:
    """Explain which layers have other inputs than their conceptors, by name."""
    sizes = {n: (size_of(c), blocks[n].size) for n, c in claims.conceptors.items() if n in blocks}
    return {
        name: f"has {now[1]} inputs now and had {before[1]} when tasks were remembered (biases "
        f"count as inputs; groups, or tokens of a vocabulary: {now[0]} and {before[0]})"
        for name, (before, now) in sizes.items()
        if before != now
    }


def join(
    claimed: Claims,
    task: Claims,
    blocks: Mapping[str, WeightBlock],
    protection: Protection,
    known: float = 0.0,
) -> Claims:
    """Compute A ∨ C of every layer, within the rank of its sketch, and add up the stiffness.

    The joint stiffness c is the mean of all tasks' c, weighted by tr Q, so that the c Q add up.
    """
    joined = Claims(dict(claimed.conceptors), dict(claimed.stiffness))
    for name, new in task.stiffness.items():
        joined.stiffness[name] = new
        if name in claimed.stiffness and name in claimed.conceptors:
            before, now = (c.conceptors[name].odds_trace().to(new) for c in (claimed, task))
            both = claimed.stiffness[name].to(new) * before + new * now
            joined.stiffness[name] = both / (before + now).clamp_min(1e-300)
    for name, conceptor in task.conceptors.items():
        device = blocks[name].parameters[0].device if name in blocks else conceptor.device
        union = conceptor.to(device)
        if name in claimed.conceptors:
            union = join_novel(claimed.conceptors[name].to(device), union, known)
        limit = protection.sketch_rank(union.dim)
        is_limited = not protection.hard or protection.rank is not None
        if limit is not None and is_limited and union.is_factored and union.rank > limit:
            union = union.top_k(limit)
        joined.conceptors[name] = union
    return joined


def claims_of_task(
    moments: dict[str, InputMoments],
    blocks: Mapping[str, WeightBlock],
    protection: Protection,
    claimed: Mapping[str, Conceptor],
) -> Claims:
    """Compute the conceptors of one task from its moments, and empty `moments`.

    Args:
        claimed: the conceptors of earlier tasks, for hard conceptors with a limited rank.
    """
    learning = [name for name in moments if not is_bare(blocks[name].spec)]
    auto = [name for name in learning if protection.is_auto(name)]
    solved = _solved(
        lambda matrices: [torch.linalg.eigvalsh(matrices)],
        {name: blocks[name] for name in auto},
        lambda name: moments[name].correlation(),
        protection,
    )
    claims, sigma = Claims(), {name: values for name, (values,) in solved}
    for name in list(moments):  # sums and conceptors need not all fit in memory
        sums, pull = moments.pop(name), protection.pull(name)
        if name in learning:
            conceptor = _conceptor(name, sums, protection, claimed.get(name), sigma.get(name))
        else:
            conceptor = _occupied(sums)
        claims.conceptors[name] = conceptor
        if pull and name in learning:  # a fixed parameter needs no pull
            odds = conceptor.odds_trace().clamp_min(1e-300)  # [g], of Q = α² R
            drift = _weight_of_drift(blocks[name], sums)
            claims.stiffness[name] = pull * drift.to(odds) / odds
    return claims


def decompose(
    conceptors: Mapping[str, Conceptor], blocks: Mapping[str, WeightBlock], protection: Protection
) -> None:
    """Decompose the odds of conceptors, which guards need; on a GPU, equal ones in one call.

    The result depends on the odds alone, so training resumes bit for bit from a checkpoint.
    """
    forms = {
        name: conceptor.form
        for name, conceptor in conceptors.items()
        if name in blocks
        and conceptor.dim > 1
        and isinstance(conceptor.form, OddsForm)
        and conceptor.form.exact is None
        and float(torch.linalg.matrix_norm(conceptor.form.matrix).max()) <= _MODERATE
    }
    chosen = {name: blocks[name] for name in forms}
    solved = _solved(torch.linalg.eigh, chosen, lambda name: forms[name].matrix, protection)
    for name, parts in solved:
        values, vectors = (part.to(forms[name].matrix) for part in parts)
        forms[name].exact = spectra.from_eigen(values, vectors)


def _solved(
    solve: Callable[[Tensor], Sequence[Tensor]],
    blocks: Mapping[str, WeightBlock],
    matrix: Callable[[str], Tensor],
    protection: Protection,
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """Decompose the matrix `[g, d, d]` of each block; on a GPU, small ones of one size together.

    Where float32 is accurate enough, it is used if LAPACK succeeds there.
    """
    groups: dict[tuple[bool, torch.device, int, str | None], list[str]] = {}
    for name, block in blocks.items():
        device, dim = block.parameters[0].device, block.size[1]
        is_double = any(p.dtype == torch.float64 for p in block.parameters)
        alone = None if device.type == "cuda" and dim <= _BATCHED else name
        is_rough = protection.is_auto(name) and not is_double
        groups.setdefault((is_rough, device, dim, alone), []).append(name)
    for (is_rough, device, *_), names in groups.items():
        parts = [matrix(name).to(device) for name in names]  # loaded ones may be in main memory
        counts, whole = [len(part) for part in parts], torch.cat(parts)
        results: Sequence[Tensor] = ()
        if is_rough:
            size = whole.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True).clamp_min(1e-300)
            with suppress(RuntimeError):  # LinAlgError
                values, *vectors = solve((whole / size[..., None]).float())  # cannot overflow
                results = [values.double() * size, *vectors] if values.isfinite().all() else ()
        split = [result.double().split(counts) for result in results or solve(whole)]
        yield from zip(names, zip(*split))


def _conceptor(
    name: str,
    sums: InputMoments,
    protection: Protection,
    claimed: Conceptor | None,
    sigma: Tensor | None,
) -> Conceptor:
    """Compute a conceptor, from the eigenvalues of R, ascending, if they are known.

    Where hard conceptors have a limited rank, directions of earlier tasks have priority.
    """
    limit = protection.rank_of(sums.dim)
    is_exact = not sums.is_sketch and sums.coarsest <= rounding(torch.float32)
    if protection.claims_all(name) and limit is None and is_exact:
        return _occupied(sums)
    choice = protection.aperture(name)
    if isinstance(choice, float):
        if limit is None:
            _check_precision(name, sums, choice)
        conceptor = sums.conceptor(choice)
    else:
        values = torch.linalg.eigvalsh(sums.correlation()) if sigma is None else sigma
        values = values.flip(-1).clamp_min(0)
        alpha = choice.aperture(values, sums.dim, protection.hard, _rounding(sums))
        conceptor = sums.conceptor(alpha)
    if not protection.hard:
        return conceptor
    if limit is not None and limit < conceptor.dim:
        used = 0 if claimed is None else int((claimed.singular_values > 0.5).sum(-1).max())
        conceptor = conceptor.top_k(max(0, limit - used))
    return conceptor.harden()


def _occupied(sums: InputMoments) -> Conceptor:
    """Return the hard conceptor of all directions above rounding."""
    spectrum = spectra.occupied(sums.correlation(), _rounding(sums))
    return Conceptor(SpectrumForm(spectrum, torch.float64))


def _weight_of_drift(block: WeightBlock, moments: InputMoments) -> Tensor:
    """Compute tr R `[g]` over E|W x|², which measures drift relative to the layer's outputs.

    A layer with zero outputs, such as a new adapter, counts as having a hundredth of usual weights.
    """
    weights = {id(p): whole(p.data) for p in block.parameters}
    matrix = block.matrix(block.parameters, weights)  # [g, out, d]
    inputs, outputs = moments.energy(), moments.output_energy(matrix)
    out, dim = matrix.shape[1:]
    least = 1e-4 * (out / (3 * dim)) * inputs.sum()
    return inputs / torch.maximum(outputs.sum(), least).clamp_min(1e-300)


def _rounding(sums: InputMoments) -> float:
    """Return the share of the rows' energy that may be rounding, of the rows or of their sums.

    Rounding in the sums is spread over all directions, and its negative half is cut off. Rows of
    half precision are summed in float32.
    """
    is_half = sums.coarsest > rounding(torch.float32)
    eps = torch.finfo(torch.float32 if is_half else torch.float64).eps
    return max(1e-12, 4 * sums.coarsest, math.sqrt(sums.dim) * eps / 2)


def _check_precision(name: str, sums: InputMoments, alpha: float) -> None:
    """Raise ValueError if aperture² times rounding is not small: rounding would be protected.

    Rounding of rows is spread evenly over all directions.
    """
    energy = float(sums.energy().max())
    if sums.coarsest * energy / sums.dim * alpha**2 > 0.1:
        is_half = sums.coarsest > rounding(torch.float32)
        raise ValueError(
            f"{'half precision' if is_half else 'float32'} is too coarse for aperture {alpha} at "
            f"layer {name!r}: its inputs have a mean square norm of {energy:.3g}, so rounding "
            f"errors would count as protected directions. Lower the aperture, or call remember "
            f"{'outside autocast' if is_half else 'on a model in float64'}"
        )
