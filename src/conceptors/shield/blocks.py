"""The weight blocks of a model: which parameters form a matrix, and which layers use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from conceptors._internal.distributed import is_sharded
from conceptors.layers import Block, Rule, find_rule
from conceptors.layers.bare import BareRule, stands_alone
from conceptors.layers.magnitude import Magnitude, magnitudes
from conceptors.layers.uses import SINGLE, overrides_forward

_OVERRIDES = "its class overrides forward: register a rule for the class"


@dataclass
class Source:
    """A layer that multiplies rows with a block's weight and adds the bias of one column."""

    layer: nn.Module
    rule: Rule
    spec: Block
    bias_column: int | None = None


@dataclass
class WeightBlock:
    """One matrix [W | b ...] `[g, out, d]` of the model, with one column per bias.

    Layers that share a weight share a block; each has its own bias column.
    """

    name: str
    weight: nn.Parameter | None
    spec: Block
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
        """Whether another block shares some of the same memory in another layout.

        The blocks of one layer do not, though they may be parts of one parameter.
        """
        shared = {id(p) for p in self.parameters} & {id(p) for p in other.parameters}
        layers = [{source.layer for source in part.sources} for part in (self, other)]
        return bool(shared) and other is not self and layers[0].isdisjoint(layers[1])

    def _ghosts(self) -> list[Tensor]:
        """View all parameters as `[g, out, ...]`, without their numbers."""
        shapes = {id(p): torch.empty(p.shape, device="meta") for p in self.parameters}
        return self.views(shapes, self.parameters)

    def columns(self, active: Iterable[nn.Parameter]) -> Tensor | None:
        """Return the indices of the columns of active parameters; None for all."""
        active_ids = {id(p) for p in active}
        widths = [view.shape[2:].numel() for view in self._ghosts()]
        is_active = [id(p) in active_ids for p, n in zip(self.parameters, widths) for _ in range(n)]
        return None if all(is_active) else torch.tensor(is_active).nonzero().flatten()

    def view_of(self, parameter: nn.Parameter) -> Callable[[Tensor], Tensor]:
        """Return a function that views a tensor like this parameter as `[g, out, ...]`."""
        bias_view = self.spec.bias_view
        return self.spec.view if parameter is self.weight else lambda x: bias_view(x)[..., None]

    def views(self, tensors: dict[int, Tensor], active: list[nn.Parameter]) -> list[Tensor]:
        """View one tensor per active parameter (itself, its gradient) as `[g, out, ...]`."""
        return [self.view_of(p)(tensors[id(p)]) for p in active]

    @property
    def size(self) -> tuple[int, int]:
        """(g, d): the number of groups, and of inputs of each, including one per bias."""
        views = self._ghosts()
        return len(views[0]), sum(view.shape[2:].numel() for view in views)

    def matrix(
        self, active: list[nn.Parameter], tensors: dict[int, Tensor] | None = None
    ) -> Tensor:
        """Return [W | b ...] `[g, out, d]` of the active parameters."""
        if tensors is None:
            tensors = {id(p): self.plain(p.data) for p in active}
        parts = [view.flatten(2) for view in self.views(tensors, active)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def plain(self, tensor: Any) -> Tensor:
        """Return a tensor of a parameter's shape as a plain one; if sharded, local rows or all."""
        if not is_sharded(tensor):
            return tensor  # type: ignore[no-any-return]
        return tensor.to_local() if self.spec.rows_first else tensor.full_tensor()  # type: ignore[no-any-return]


@dataclass
class Scan:
    """The blocks and other parameters of a model, as the shield sees them."""

    blocks: dict[str, WeightBlock] = field(default_factory=dict)
    frozen: dict[str, nn.Parameter] = field(default_factory=dict)  # once a task is remembered
    unsupported: dict[str, str] = field(default_factory=dict)  # trainable parameter -> why
    resting: dict[str, WeightBlock] = field(default_factory=dict)  # without trainable parameters
    magnitudes: dict[str, Magnitude] = field(default_factory=dict)  # follow directions after a task
    identity: dict[str, list[object]] = field(default_factory=dict)  # equal if guards need no news

    def identify(self) -> None:
        """Record the identity, because parameters may be resized in place."""
        for name, block in self.blocks.items():
            sources = [(id(source.layer), source.bias_column) for source in block.sources]
            shapes, active = [p.shape for p in block.parameters], [id(p) for p in block.active()]
            self.identity[name] = [[id(p) for p in block.parameters], shapes, active, sources]
        self.identity |= {name: [id(p)] for name, p in self.frozen.items()}
        self.identity |= {name: [id(m.parameter)] for name, m in self.magnitudes.items()}

    def add(
        self, name: str, source: Source, weight: nn.Parameter | None, bias: nn.Parameter | None
    ) -> WeightBlock:
        """Add a source to the block that has its weight, or to a new block."""
        learns = any(p is not None and p.requires_grad and p.numel() for p in (weight, bias))
        blocks, layout = self.blocks if learns else self.resting, source.spec.layout
        for block in blocks.values() if weight is not None else ():
            if block.weight is weight and block.spec.layout == layout:
                break
        else:
            block = blocks[name] = WeightBlock(name, weight, source.spec)
        if bias is not None:
            if not any(b is bias for b in block.biases):
                block.biases.append(bias)
            source.bias_column = [b is bias for b in block.biases].index(True)
        block.sources.append(source)
        return block

    def replaced(self, before: Scan) -> set[str]:
        """Return the names of blocks that have other parameters than before."""
        common = self.blocks.keys() & before.blocks.keys()
        return {name for name in common if self.identity[name][0] != before.identity[name][0]}


def refuse(reasons: Mapping[str, str]) -> None:
    """Raise ValueError if parameters cannot be shielded, with the reason by name."""
    listed = "\n".join(f"  {name} ({why})" for name, why in reasons.items())
    if listed:
        raise ValueError(
            f"these trainable parameters cannot be shielded:\n{listed}\n"
            f"Choose unsupported='freeze' (fixed once a task is remembered) or 'ignore' (may "
            f"forget), exclude them by name, call their layer, layer(x), or register a rule for "
            f"it. A matrix that multiplies inputs, such as that of an adapter, is shielded if it "
            f"is an nn.Linear that is called"
        )


def survey(
    model: nn.Module, exclude: Iterable[str], freeze: Iterable[str], unsupported: str
) -> Scan:
    """Scan a model, and treat unsupported parameters as "error", "freeze", or "ignore" says.

    Raises:
        ValueError: unsupported parameters are errors, or the model has no block.
    """
    result = scan(model, exclude, freeze)
    if unsupported == "error":
        refuse(result.unsupported)
    if unsupported == "freeze":
        parameters = dict(model.named_parameters())
        result.frozen.update((name, parameters[name]) for name in result.unsupported)
    if not result.blocks:
        raise ValueError(
            f"{type(model).__name__} has no trainable parameters that can be shielded: everything "
            f"is frozen or excluded, or its adapters were merged. Unfreeze the layers that will be "
            f"trained, or detach() this shield and create one for the merged model"
        )
    result.identify()
    return result


def scan(model: nn.Module, exclude: Iterable[str], freeze: Iterable[str]) -> Scan:
    """Find all blocks of a model, and the trainable parameters that belong to no block."""
    names = {id(p): name for name, p in model.named_parameters()}
    skipped, fixed = list(exclude), list(freeze)
    result, covered, obstacles = Scan(), set[int](), dict[int, str]()
    for path, layer in model.named_modules():
        rule = find_rule(layer)
        if rule is None:
            continue
        overrides = overrides_forward(layer) and not isinstance(layer, SINGLE)
        for spec in rule.blocks(layer):
            weight, bias = parameter_at(layer, spec.weight), parameter_at(layer, spec.bias)
            parameters = [p for p in (weight, bias) if p is not None]
            is_absent = spec.weight is not None and weight is None
            if is_absent or not any(id(p) in names for p in parameters):
                continue
            why = _OVERRIDES if overrides else _obstacle(spec, weight, bias)
            if why is not None:
                obstacles.update((id(p), why) for p in parameters)
                continue
            name = ".".join(part for part in (path, spec.name) if part) or type(layer).__name__
            passive = {id(p) for p in parameters if matches([name, names[id(p)]], skipped + fixed)}
            covered.update({id(p) for p in parameters} - passive)
            if len(passive) < len(parameters) and any(p.numel() for p in parameters):
                block = result.add(name, Source(layer, rule, spec), weight, bias)
                block.passive |= passive
    learning = {id(p) for block in result.blocks.values() for p in block.active()}
    for magnitude in magnitudes(model):
        name = names[id(magnitude.parameter)]
        if learning & set(map(id, magnitude.directions)) and not matches([name], skipped):
            result.magnitudes[name] = magnitude
    for name, parameter in model.named_parameters():
        if id(parameter) in covered or name in result.magnitudes:
            continue
        if matches([name], fixed):
            result.frozen |= {name: parameter} if parameter.requires_grad else {}
        elif not matches([name], skipped):
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
        (spec,) = rule.blocks(layer)
        why = _obstacle(spec, parameter, None)
        if why is None:
            result.add(name, Source(layer, rule, spec), parameter, None)
            return
    if parameter.requires_grad:
        why = why or f"shape {list(parameter.shape)}"
        result.unsupported[name] = f"{type(layer).__name__}, {why}"


def _obstacle(spec: Block, weight: nn.Parameter | None, bias: nn.Parameter | None) -> str | None:
    """Return why parameters cannot be viewed as a block; None if they can."""
    for parameter, view in ((weight, spec.view), (bias, spec.bias_view)):
        if parameter is None:
            continue
        if is_lazy(parameter):
            return "not initialised yet: run a batch through the model first"
        data: Any = parameter.data
        if data.is_complex():
            return "complex numbers are not supported"
        if is_sharded(data) and spec.rows_first:
            if all(cut.is_replicate() or cut.is_shard(0) for cut in data.placements):
                continue
            return (
                f"its weights have placements {data.placements}: only whole weights, and weights "
                f"sharded by rows, Shard(0), are supported"
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
