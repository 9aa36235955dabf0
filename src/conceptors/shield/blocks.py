"""The weight blocks of a model: which parameters form a matrix, and which layers use it."""

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
    """A layer that multiplies rows with a block's weight and adds the bias of one column."""

    layer: nn.Module
    rule: Rule
    block: Block
    bias_column: int | None


@dataclass
class WeightBlock:
    """One matrix [W | b ...] `[g, out, d]` of the model, with one column per bias.

    Layers that share a weight share a block; each has its own bias column.
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
        """Return the parameters that are trained, within the free space only."""
        return [p for p in self.parameters if p.requires_grad and id(p) not in self.passive]

    def crosses(self, other: WeightBlock) -> bool:
        """Whether another block shares some of the same memory in another layout."""
        theirs = {id(p) for p in other.parameters}
        return other is not self and any(
            max(_first(self, p), _first(other, p)) <= min(_last(self, p), _last(other, p))
            for p in self.parameters
            if id(p) in theirs
        )

    def columns(self, active: Iterable[nn.Parameter]) -> Tensor | None:
        """Return the indices of the columns of active parameters; None for all."""
        active_ids = {id(p) for p in active}
        indices: list[int] = []
        width = 0
        for parameter in self.parameters:
            size = self.matrix([parameter]).shape[-1]
            if id(parameter) in active_ids:
                indices += range(width, width + size)
            width += size
        return None if len(indices) == width else torch.tensor(indices, dtype=torch.long)

    def views(self, tensors: dict[int, Tensor], active: list[nn.Parameter]) -> list[Tensor]:
        """View one tensor per active parameter (itself, its gradient) as `[g, out, ...]`."""
        views = []
        for parameter in active:
            tensor = tensors[id(parameter)]
            view = self.block.view if parameter is self.weight else self.block.bias_view
            views.append(view(tensor) if parameter is self.weight else view(tensor)[..., None])
        return views

    @property
    def size(self) -> tuple[int, int]:
        """(g, d): the number of groups, and of inputs of each, including one per bias."""
        shapes = {id(p): torch.empty(p.shape, device="meta") for p in self.parameters}
        views = self.views(shapes, self.parameters)
        return len(views[0]), sum(view.shape[2:].numel() for view in views)

    def has_more_tokens(self, claimed: Conceptor) -> bool:
        """Whether this is a vocabulary with more tokens than a conceptor has groups."""
        groups, dim = self.size
        has_grown = claimed.batch_shape[0] < groups and claimed.dim == dim
        return has_grown and self.block.layout == "tokens"

    def matrix(
        self, active: list[nn.Parameter], tensors: dict[int, Tensor] | None = None
    ) -> Tensor:
        """Return [W | b ...] `[g, out, d]` of the active parameters."""
        if tensors is None:
            tensors = {id(p): self.read(p) for p in active}
        parts = [view.flatten(2) for view in self.views(tensors, active)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def subtract(self, change: Tensor, active: list[nn.Parameter]) -> None:
        """Subtract a change `[g, out, d]` from the active parameters, in place."""
        start = 0
        for parameter in active:
            local = self.read(parameter)
            (view,) = self.views({id(parameter): local}, [parameter])
            size = view.shape[2:].numel()
            part = change[..., start : start + size].reshape(view.shape)
            start += size
            view.sub_(part.to(view.dtype))
            self.write(parameter, local)

    def read(self, parameter: nn.Parameter) -> Tensor:
        """Return a parameter as a plain tensor; if sharded, its local rows or all of it."""
        return self.plain(parameter.data)

    def plain(self, tensor: Any) -> Tensor:
        """Return a tensor of a parameter's shape as a plain tensor."""
        if not is_sharded(tensor):
            return tensor  # type: ignore[no-any-return]
        if not self.block.rows_first:
            return self.whole(tensor)
        if not is_sharded_by_rows(tensor):  # sharded after the shield was created
            raise ValueError(
                f"layer {self.name} has weights {list(tensor.shape)} with placements "
                f"{tuple(tensor.placements)}, but a shield needs weights that are whole or sharded "
                f"by rows, Shard(0), as in FSDP2; shard the layer by rows, or exclude it"
            )
        local: Tensor = tensor.to_local()
        return local

    def whole(self, tensor: Any) -> Tensor:
        """Return the whole tensor, on every process."""
        full: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
        return full

    def write(self, parameter: nn.Parameter, value: Tensor) -> None:
        """Store a tensor from `read` in its parameter, unless they share memory."""
        data = parameter.data
        if is_sharded(data) and not self.block.rows_first:
            data.copy_(shard_like(value, data))


def _first(site: WeightBlock, parameter: nn.Parameter) -> int:
    """Return where in a parameter's memory the view of a block begins."""
    return int(_ghost(site, parameter).storage_offset())


def _last(site: WeightBlock, parameter: nn.Parameter) -> int:
    """Return where in a parameter's memory the view of a block ends."""
    view = _ghost(site, parameter)
    return int(view.storage_offset()) + sum((n - 1) * s for n, s in zip(view.shape, view.stride()))


def _ghost(site: WeightBlock, parameter: nn.Parameter) -> Tensor:
    ghost = torch.empty(parameter.shape, device="meta")
    return site.views({id(parameter): ghost}, [parameter])[0]


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, as in FSDP2 and tensor parallelism."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def is_sharded_by_rows(tensor: Any) -> bool:
    """Whether each process has all rows of a DTensor, or some whole rows."""
    return all(cut.is_replicate() or cut.is_shard(0) for cut in tensor.placements)


def shard_like(value: Tensor, like: Any) -> Tensor:
    """Shard a full tensor like another."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements)


@dataclass
class Scan:
    """The blocks and other parameters of a model, as the shield sees them."""

    sites: dict[str, WeightBlock]
    frozen: dict[str, nn.Parameter]  # fixed once a task is remembered
    unsupported: dict[str, str]  # trainable parameter -> why
    resting: dict[str, WeightBlock]  # blocks without trainable parameters
    magnitudes: dict[str, Magnitude]  # follow their directions once a task is remembered

    def __post_init__(self) -> None:
        # stored, because parameters may be resized in place
        self._shapes = {n: [p.shape for p in site.parameters] for n, site in self.sites.items()}

    def same(self, other: Scan) -> bool:
        """Whether two scans of a model are equal."""
        return self._identity() == other._identity()

    def replaced(self, before: Scan) -> frozenset[str]:
        """Return the names of blocks that have other parameters than before."""
        return frozenset(
            name
            for name, site in self.sites.items()
            if name in before.sites
            and [id(p) for p in site.parameters] != [id(p) for p in before.sites[name].parameters]
        )

    def _identity(self) -> object:
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
    """Scan a model, and treat unsupported parameters as "error", "freeze", or "ignore" says.

    Raises:
        ValueError: unsupported parameters are errors, or the model has no block.
    """
    result = scan(model, exclude, freeze)
    if result.unsupported and unsupported == "error":
        listed = "\n".join(f"  {name} ({why})" for name, why in result.unsupported.items())
        raise ValueError(
            f"these trainable parameters cannot be shielded:\n{listed}\n"
            f"Choose unsupported='freeze' (fixed after the first task) or 'ignore' (may forget), "
            f"exclude them by name, or register a rule for their layer. A matrix that multiplies "
            f"inputs, such as that of an adapter, is shielded if it is an nn.Linear that is called"
        )
    if unsupported == "freeze":
        parameters = dict(model.named_parameters())
        result.frozen.update((name, parameters[name]) for name in result.unsupported)
    if not result.sites:
        raise ValueError(
            f"{type(model).__name__} has no trainable parameters that can be shielded (is "
            f"everything frozen or excluded?); unfreeze the layers that will be trained first"
        )
    return result


def scan(model: nn.Module, exclude: Iterable[str], freeze: Iterable[str]) -> Scan:
    """Find all blocks of a model, and the trainable parameters that belong to no block."""
    names = {id(p): name for name, p in model.named_parameters(remove_duplicate=True)}
    skipped, fixed = list(exclude), list(freeze)
    covered: set[int] = set()
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
            parameters = [p for p in (weight, bias) if p is not None]
            if (
                not parameters
                or (block.weight and weight is None)
                or not any(id(p) in names for p in parameters)
            ):
                continue
            name = ".".join(part for part in (path, block.name) if part) or type(layer).__name__
            why = _overridden_forward(layer) or _obstacle(block, weight, bias)
            if why is not None:
                obstacles.update((id(p), why) for p in parameters)
                continue
            passive = {id(p) for p in parameters if matches([name, names[id(p)]], skipped + fixed)}
            if len(passive) == len(parameters):
                continue
            covered.update(id(p) for p in parameters if id(p) not in passive)
            if not any(p.numel() for p in parameters):
                continue
            learns = any(p.requires_grad and p.numel() for p in parameters)
            target = sites if learns else resting
            site = _add_source(target, name, Source(layer, rule, block, None), weight, bias)
            site.passive |= passive
    others = {name: p for name, p in model.named_parameters() if id(p) not in covered}
    frozen |= {name: p for name, p in others.items() if p.requires_grad and matches([name], fixed)}
    learning = {id(p) for site in sites.values() for p in site.active()}
    followers = {
        names[id(m.parameter)]: m
        for m in magnitudes(model)
        if any(id(p) in learning for p in m.directions)
        and not matches([names[id(m.parameter)]], skipped)
    }
    frozen = {name: p for name, p in frozen.items() if name not in followers}
    result = Scan(sites, frozen, {}, resting, followers)
    for name, parameter in others.items():
        if name not in followers and not matches([name], fixed + skipped):
            _add_bare(result, model, name, parameter, obstacles.get(id(parameter)))
    return result


def _add_bare(
    result: Scan, model: nn.Module, name: str, parameter: nn.Parameter, why: str | None
) -> None:
    """Add a parameter that belongs to no layer's matrix: as its own block, or as unsupported."""
    owner, _, attribute = name.rpartition(".")
    layer = model.get_submodule(owner)
    if isinstance(layer, torch.jit.ScriptModule):
        why = "compiled by torch.jit.script, so its inputs are hidden: create the shield first"
    if why is None and parameter.numel() and stands_alone(parameter):
        rule = BareRule(attribute)
        (block,) = rule.blocks(layer)
        why = _obstacle(block, parameter, None)
        if why is None:
            target = result.sites if parameter.requires_grad else result.resting
            _add_source(target, name, Source(layer, rule, block, None), parameter, None)
            return
    if parameter.requires_grad:
        why = why or f"shape {list(parameter.shape)}"
        result.unsupported[name] = f"{type(layer).__name__}, {why}"


def _add_source(
    sites: dict[str, WeightBlock],
    name: str,
    source: Source,
    weight: nn.Parameter | None,
    bias: nn.Parameter | None,
) -> WeightBlock:
    """Add a source to the block that has its weight, or to a new block."""
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
        columns = [i for i, b in enumerate(site.biases) if b is bias]
        if not columns:
            site.biases.append(bias)
        source.bias_column = columns[0] if columns else len(site.biases) - 1
    site.sources.append(source)
    return site


def _overridden_forward(layer: nn.Module) -> str | None:
    """Return why the rule of a parent class does not apply; None if it does."""
    if not overrides_forward(layer) or isinstance(layer, SINGLE):
        return None
    return "its class overrides forward: register a rule for the class"


def _obstacle(block: Block, weight: nn.Parameter | None, bias: nn.Parameter | None) -> str | None:
    """Return why parameters cannot be viewed as a block; None if they can."""
    for parameter, view in ((weight, block.view), (bias, block.bias_view)):
        if parameter is None:
            continue
        if is_lazy(parameter):
            return "not initialised yet: run a batch through the model first"
        data: Any = parameter.data
        if data.is_complex():
            return "complex numbers are not supported"
        if is_sharded(data) and block.rows_first and not is_sharded_by_rows(data):
            return (
                f"its weights have placements {tuple(data.placements)}: only whole weights, and "
                f"weights sharded by rows, Shard(0), are supported"
            )
        if not is_sharded(data) and (
            view(data).untyped_storage().data_ptr() != data.untyped_storage().data_ptr()
        ):
            return "its memory layout does not allow a view as a matrix: make it contiguous"
    return None


def parameter_at(layer: nn.Module, path: str | None) -> nn.Parameter | None:
    """Return the parameter at a dotted path below a layer; None if there is none."""
    if path is None:
        return None
    value: object = layer
    for part in path.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, nn.Parameter) else None


def matches(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether a name, or a module above it, matches any of the shell-style patterns."""
    return any(
        fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".*")
        for name in names
        for pattern in patterns
    )
