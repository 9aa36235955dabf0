"""The weight blocks of a model: which parameters form a matrix, and which layers feed it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from conceptors.algebra.conceptor import Conceptor
from conceptors.layers import Block, Rule, find_rule
from conceptors.layers.bare import BareRule, stands_alone
from conceptors.layers.inner import SINGLE, overrides_forward
from conceptors.layers.magnitude import Magnitude, magnitudes


@dataclass
class Source:
    """A layer that multiplies rows with a site's weight, adding the bias of that column."""

    layer: nn.Module
    rule: Rule
    block: Block
    bias_column: int | None


@dataclass
class WeightBlock:
    """One matrix [W | b ...] `[g, out, d]` of the model, with one column a bias.

    Layers that share a weight share a site; each brings its own bias column.
    """

    name: str
    weight: nn.Parameter | None
    block: Block
    biases: list[nn.Parameter] = field(default_factory=list)
    passive: set[int] = field(default_factory=set)  # ids of parameters excluded or frozen by name
    sources: list[Source] = field(default_factory=list)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the columns, in order."""
        return ([] if self.weight is None else [self.weight]) + self.biases

    def active(self) -> list[nn.Parameter]:
        """The parameters that may change, and only within the free space."""
        return [p for p in self.parameters if p.requires_grad and id(p) not in self.passive]

    def crosses(self, other: WeightBlock) -> bool:
        """Whether another site has some of the same numbers, in another layout."""
        theirs = {id(p) for p in other.parameters}
        return other is not self and any(
            max(_first(self, p), _first(other, p)) <= min(_last(self, p), _last(other, p))
            for p in self.parameters
            if id(p) in theirs
        )

    def columns(self, active: Iterable[nn.Parameter]) -> Tensor | None:
        """Indices of the columns that belong to active parameters; None for all."""
        wanted = {id(p) for p in active}
        keep: list[int] = []
        width = 0
        for parameter in self.parameters:
            size = self.matrix([parameter]).shape[-1]
            if id(parameter) in wanted:
                keep += range(width, width + size)
            width += size
        return None if len(keep) == width else torch.tensor(keep, dtype=torch.long)

    def views(self, tensors: dict[int, Tensor], active: list[nn.Parameter]) -> list[Tensor]:
        """Views `[g, out, ...]` of one tensor for each active parameter (itself, its gradient)."""
        found = []
        for parameter in active:
            tensor = tensors[id(parameter)]
            view = self.block.view if parameter is self.weight else self.block.bias_view
            found.append(view(tensor) if parameter is self.weight else view(tensor)[..., None])
        return found

    @property
    def size(self) -> tuple[int, int]:
        """g, d: groups of the block and inputs of each, one per bias among them."""
        shapes = {id(p): torch.empty(p.shape, device="meta") for p in self.parameters}
        views = self.views(shapes, self.parameters)
        return len(views[0]), sum(view.shape[2:].numel() for view in views)

    def has_more_tokens(self, held: Conceptor) -> bool:
        """Whether it is a vocabulary that has grown since."""
        groups, dim = self.size
        more = held.batch_shape[0] < groups and held.dim == dim
        return more and self.block.layout == "tokens"

    def matrix(
        self, active: list[nn.Parameter], tensors: dict[int, Tensor] | None = None
    ) -> Tensor:
        """[W | b ...] `[g, out, d]` of the active parameters."""
        if tensors is None:
            tensors = {id(p): self.read(p) for p in active}
        parts = [view.flatten(2) for view in self.views(tensors, active)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def subtract(self, change: Tensor, active: list[nn.Parameter]) -> None:
        """Take a change `[g, out, d]` off the active parameters, in place."""
        taken = 0
        for parameter in active:
            local = self.read(parameter)
            (view,) = self.views({id(parameter): local}, [parameter])
            size = view.shape[2:].numel()
            part = change[..., taken : taken + size].reshape(view.shape)
            taken += size
            view.sub_(part.to(view.dtype))
            self.write(parameter, local)

    def read(self, parameter: nn.Parameter) -> Tensor:
        """A plain tensor of a parameter: itself; if sharded, its local rows or all of it."""
        return self.plain(parameter.data)

    def plain(self, tensor: Any) -> Tensor:
        """The same of any tensor of a parameter's shape."""
        if not is_sharded(tensor):
            return tensor  # type: ignore[no-any-return]
        if not self.block.rows_first:
            return self.whole(tensor)
        if not cut_by_rows(tensor):  # placed so after the shield was made
            raise ValueError(
                f"{self.name} has weights {list(tensor.shape)} that are placed as "
                f"{tuple(tensor.placements)}; a shield takes weights that are whole or cut by "
                f"rows, Shard(0), as FSDP2 cuts them: shard the layer so, or exclude it"
            )
        local: Tensor = tensor.to_local()
        return local

    def whole(self, tensor: Any) -> Tensor:
        """All of a tensor, on every process."""
        found: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
        return found

    def write(self, parameter: nn.Parameter, value: Tensor) -> None:
        """Put back what `read` gave, where that was not the parameter's own memory."""
        data = parameter.data
        if is_sharded(data) and not self.block.rows_first:
            data.copy_(shard_like(value, data))


def _first(site: WeightBlock, parameter: nn.Parameter) -> int:
    """Where in a parameter's memory a site's view of it begins."""
    return int(_ghost(site, parameter).storage_offset())


def _last(site: WeightBlock, parameter: nn.Parameter) -> int:
    """Where in a parameter's memory a site's view of it ends."""
    view = _ghost(site, parameter)
    return int(view.storage_offset()) + sum((n - 1) * s for n, s in zip(view.shape, view.stride()))


def _ghost(site: WeightBlock, parameter: nn.Parameter) -> Tensor:
    ghost = torch.empty(parameter.shape, device="meta")
    return site.views({id(parameter): ghost}, [parameter])[0]


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, as FSDP2 and tensor parallelism make them."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def cut_by_rows(tensor: Any) -> bool:
    """Whether a DTensor is whole on every process, or each has some of its rows."""
    return all(cut.is_replicate() or cut.is_shard(0) for cut in tensor.placements)


def shard_like(value: Tensor, like: Any) -> Tensor:
    """A full tensor cut as `like` is."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements)


@dataclass
class Scan:
    """What a model is made of, as far as the shield is concerned."""

    sites: dict[str, WeightBlock]
    frozen: dict[str, nn.Parameter]  # held fixed once a task is remembered
    unsupported: dict[str, str]  # trainable parameter -> why
    resting: dict[str, WeightBlock]  # blocks of which nothing learns now
    magnitudes: dict[str, Magnitude]  # follow their directions once a task is remembered

    def __post_init__(self) -> None:
        # of now: parameters may be made larger in place
        self._shapes = {n: [p.shape for p in site.parameters] for n, site in self.sites.items()}

    def same(self, other: Scan) -> bool:
        """Whether another look at the model found nothing new."""
        return self._made_of() == other._made_of()

    def replaced(self, before: Scan) -> frozenset[str]:
        """Names of sites that have other parameters than before."""
        return frozenset(
            name
            for name, site in self.sites.items()
            if name in before.sites
            and [id(p) for p in site.parameters] != [id(p) for p in before.sites[name].parameters]
        )

    def _made_of(self) -> object:
        sites = {
            name: (
                [id(p) for p in site.parameters],
                [id(p) for p in site.active()],
                [(id(source.layer), source.bias_column) for source in site.sources],
            )
            for name, site in self.sites.items()
        }
        frozen = {name: id(p) for name, p in self.frozen.items()}
        followers = {name: id(m.parameter) for name, m in self.magnitudes.items()}
        return sites, self._shapes, frozen, self.unsupported, list(self.resting), followers


def survey(
    model: nn.Module, exclude: Iterable[str], freeze: Iterable[str], unsupported: str
) -> Scan:
    """`scan`, with what becomes of parameters that no site covers: "error", "freeze", "ignore".

    Raises:
        ValueError: there are such parameters and they are errors, or there is no site at all.
    """
    found = scan(model, exclude, freeze)
    if found.unsupported and unsupported == "error":
        listed = "\n".join(f"  {name} ({why})" for name, why in found.unsupported.items())
        raise ValueError(
            f"these trainable parameters cannot be shielded:\n{listed}\nchoose "
            f"unsupported='freeze' (fixed after the first task) or 'ignore' (may forget), "
            f"exclude them by name, or register a rule for their layer; matrices that inputs are "
            f"multiplied with, as of adapters, are shielded as nn.Linear layers that are called"
        )
    if unsupported == "freeze":
        parameters = dict(model.named_parameters())
        found.frozen.update((name, parameters[name]) for name in found.unsupported)
    if not found.sites:
        raise ValueError(
            f"{type(model).__name__} has no trainable parameters that can be shielded; "
            f"is everything frozen or excluded?"
        )
    return found


def scan(model: nn.Module, exclude: Iterable[str], freeze: Iterable[str]) -> Scan:
    """Find all sites of a model, and the trainable parameters that no site covers."""
    names = {id(p): name for name, p in model.named_parameters(remove_duplicate=True)}
    skipped, fixed = list(exclude), list(freeze)
    claimed: set[int] = set()
    obstacles: dict[int, str] = {}
    sites: dict[str, WeightBlock] = {}
    resting: dict[str, WeightBlock] = {}
    frozen: dict[str, nn.Parameter] = {}
    for path, layer in model.named_modules():
        rule = find_rule(layer)
        if rule is None:
            continue
        for block in rule.blocks(layer):
            weight, bias = parameter_at(layer, block.weight), parameter_at(layer, block.bias)
            found = [p for p in (weight, bias) if p is not None]
            if (
                not found
                or (block.weight and weight is None)
                or not any(id(p) in names for p in found)
            ):
                continue
            name = ".".join(part for part in (path, block.name) if part) or type(layer).__name__
            why = _forward_of_its_own(layer) or _obstacle(block, weight, bias)
            if why is not None:
                obstacles.update((id(p), why) for p in found)
                continue
            named = {id(p) for p in found if matches([name, names[id(p)]], skipped + fixed)}
            if len(named) == len(found):
                continue
            claimed.update(id(p) for p in found if id(p) not in named)
            if not any(p.numel() for p in found):
                continue
            learns = any(p.requires_grad and p.numel() for p in found)
            row = sites if learns else resting
            site = _join(row, name, Source(layer, rule, block, None), weight, bias)
            site.passive |= named
    rest = {name: p for name, p in model.named_parameters() if id(p) not in claimed}
    frozen |= {name: p for name, p in rest.items() if p.requires_grad and matches([name], fixed)}
    learning = {id(p) for site in sites.values() for p in site.active()}
    followers = {
        names[id(m.parameter)]: m
        for m in magnitudes(model)
        if any(id(p) in learning for p in m.directions)
        and not matches([names[id(m.parameter)]], skipped)
    }
    frozen = {name: p for name, p in frozen.items() if name not in followers}
    whole = Scan(sites, frozen, {}, resting, followers)
    for name, parameter in rest.items():
        if name not in followers and not matches([name], fixed + skipped):
            _add_alone(whole, model, name, parameter, obstacles.get(id(parameter)))
    return whole


def _add_alone(
    found: Scan, model: nn.Module, name: str, parameter: nn.Parameter, why: str | None
) -> None:
    """Add a parameter that is none of a layer's matrices: as a site of its own, if it may be."""
    owner, _, own = name.rpartition(".")
    layer = model.get_submodule(owner)
    if isinstance(layer, torch.jit.ScriptModule):
        why = "compiled by torch.jit.script, so its inputs cannot be seen; shield the model first"
    if why is None and parameter.numel() and stands_alone(parameter):
        rule = BareRule(own, parameter)
        (block,) = rule.blocks(layer)
        why = _obstacle(block, parameter, None)
        if why is None:
            row = found.sites if parameter.requires_grad else found.resting
            _join(row, name, Source(layer, rule, block, None), parameter, None)
            return
    if parameter.requires_grad:
        why = why or f"shape {list(parameter.shape)}"
        found.unsupported[name] = f"{type(layer).__name__}, {why}"


def _join(
    sites: dict[str, WeightBlock],
    name: str,
    source: Source,
    weight: nn.Parameter | None,
    bias: nn.Parameter | None,
) -> WeightBlock:
    """Add a source to the site that has its weight already, or to a new one."""
    site = next(
        (
            s
            for s in sites.values()
            if weight is not None and s.weight is weight and s.block.layout == source.block.layout
        ),
        None,
    )
    if site is None:
        site = sites[name] = WeightBlock(name, weight, source.block)
    if bias is not None:
        held = [i for i, b in enumerate(site.biases) if b is bias]
        if not held:
            site.biases.append(bias)
        source.bias_column = held[0] if held else len(site.biases) - 1
    site.sources.append(source)
    return site


def _forward_of_its_own(layer: nn.Module) -> str | None:
    """Why a rule for a parent class does not do; None if it does."""
    if not overrides_forward(layer) or isinstance(layer, SINGLE):
        return None
    return "it has a forward of its own: register a rule for its class"


def _obstacle(block: Block, weight: nn.Parameter | None, bias: nn.Parameter | None) -> str | None:
    """Why parameters cannot be seen as a block; None if they can."""
    for parameter, view in ((weight, block.view), (bias, block.bias_view)):
        if parameter is None:
            continue
        if is_lazy(parameter):
            return "not initialised yet: run a batch through the model first"
        data: Any = parameter.data
        if data.is_complex():
            return "complex numbers"
        if is_sharded(data) and block.rows_first and not cut_by_rows(data):
            return (
                f"its weights are placed as {tuple(data.placements)}: a shield takes whole ones, "
                f"and those cut by rows, Shard(0), as FSDP2 does"
            )
        if not is_sharded(data) and (
            view(data).untyped_storage().data_ptr() != data.untyped_storage().data_ptr()
        ):
            return "a memory layout that allows no view of it as a block: make it contiguous"
    return None


def parameter_at(layer: nn.Module, path: str | None) -> nn.Parameter | None:
    """The parameter at a dotted path below a layer; None if there is none of that name."""
    if path is None:
        return None
    found: object = layer
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, nn.Parameter) else None


def matches(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether a name, or a module above it, fits any of the shell-style patterns."""
    return any(
        fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".*")
        for name in names
        for pattern in patterns
    )
