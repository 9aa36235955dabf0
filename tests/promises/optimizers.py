"""Optimizers drawn by a seed: torch's with all kinds of settings, and two of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

Parameters = list[nn.Parameter]


class SAM(Optimizer):
    """Sharpness-aware minimisation, as people write it: puts a copy in place of `p.data`."""

    def __init__(self, params: Any, lr: float = 0.05, rho: float = 0.05) -> None:
        super().__init__(params, {"lr": lr, "rho": rho, "momentum": 0.9})
        self.base = optim.SGD(self.param_groups, lr=lr, momentum=0.9)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        moved = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norms = [p.grad.norm() for p in moved if p.grad is not None]
        scale = self.param_groups[0]["rho"] / torch.stack(norms).norm().clamp_min(1e-12)
        for p in moved:
            self.state[p]["old"] = p.data.clone()
            p.add_(p.grad * scale)
        with torch.enable_grad():
            closure()
        for p in moved:
            p.data = self.state[p].pop("old")
        self.base.step()
        return loss


class Lookahead:
    """Steps another optimizer, and every second time goes half-way back."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.count = optimizer, 0
        self.slow: dict[nn.Parameter, Tensor] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self) -> None:
        fast = [p for group in self.param_groups for p in group["params"]]
        for p in fast:
            self.slow.setdefault(p, p.detach().clone())
        self.optimizer.step()
        self.count += 1
        if self.count % 2 == 0:
            for p in fast:
                self.slow[p].lerp_(p, 0.5)
                p.copy_(self.slow[p])

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


Settings = Callable[[Random], dict[str, Any]]


def _choose(**choices: list[Any]) -> Settings:
    return lambda draw: {name: draw.choice(values) for name, values in choices.items()}


_WAY: list[dict[str, bool]] = [{}, {}, {"foreach": True}, {"foreach": False}, {"fused": True}]
_DECAY = [0.0, 0.0, 0.1]
TORCH: dict[type[Optimizer], Settings] = {
    optim.SGD: _choose(
        lr=[0.01, 0.03],
        momentum=[0.0, 0.0, 0.9],
        weight_decay=_DECAY,
        maximize=[False, False, True],
        way=_WAY,
    ),
    optim.Adam: _choose(
        lr=[0.01],
        weight_decay=_DECAY,
        amsgrad=[False, True],
        maximize=[False, False, True],
        way=_WAY,
    ),
    optim.AdamW: _choose(
        lr=[0.01], weight_decay=[0.0, 0.1], amsgrad=[False, True], way=[*_WAY, {"maximize": True}]
    ),
    optim.RAdam: _choose(lr=[0.05], weight_decay=_DECAY, decoupled_weight_decay=[False, True]),
    optim.RMSprop: _choose(
        lr=[0.005], momentum=[0.0, 0.5], centered=[False, True], weight_decay=_DECAY
    ),
    optim.Rprop: _choose(lr=[0.005], step_sizes=[(1e-6, 0.02)]),
    optim.Adagrad: _choose(lr=[0.05], weight_decay=_DECAY, lr_decay=[0.0, 0.1], way=_WAY),
    optim.Adafactor: _choose(lr=[0.02], weight_decay=_DECAY),
    optim.LBFGS: _choose(
        lr=[0.1], max_iter=[2, 3], line_search_fn=[None, "strong_wolfe"], history_size=[3]
    ),
    SAM: _choose(lr=[0.01], rho=[0.05]),
}
SPARSE: dict[type[Optimizer], Settings] = {
    optim.SparseAdam: _choose(lr=[0.02]),
    optim.SGD: _choose(lr=[0.1], momentum=[0.0, 0.9]),
    optim.Adagrad: _choose(lr=[0.05]),
}


ONE = ("all", "groups")  # ways to split parameters that need one optimizer


class Recipe(NamedTuple):
    """How to make the optimizers of a network, the same each time."""

    make: Callable[[nn.Module], list[Any]]
    takes_closure: bool
    maximizes: bool
    takes_groups: bool  # one optimizer, to which parameters can be added
    text: str


def recipe(draw: Random, sparse: bool) -> Recipe:
    """Optimizers for a network, of `sparse` gradients or not."""
    if sparse:
        return _for_sparse(draw)
    kind = draw.choice(list(TORCH))
    options = TORCH[kind](draw)
    options |= options.pop("way", {})
    if options.get("fused") and options.get("momentum"):
        del options["fused"]  # torch fails there when a parameter's first gradient comes late
    closure = kind in (optim.LBFGS, SAM)
    split = "all" if closure else draw.choice(["all", "all", "groups", "pair", "muon"])
    if split == "muon" and options.get("maximize"):
        split = "all"
    # two that go back on their own leave the free space of a layer that they share
    ahead = not closure and draw.random() < (0.15 if split in ONE else 0.02)
    chosen = draw.getrandbits(32)

    def make(network: nn.Module) -> list[Any]:
        some = list(network.parameters())
        found = _made(kind, options, split, some, chosen)
        return [Lookahead(optimizer) for optimizer in found] if ahead else found

    text = f"{'Lookahead of ' * ahead}{kind.__name__} {split} {options}"
    grows = split in ONE and not closure
    return Recipe(make, closure, bool(options.get("maximize")), grows, text)


def _made(
    kind: Any, options: Mapping[str, Any], split: str, some: Parameters, chosen: int
) -> list[Optimizer]:
    draw = Random(chosen)
    if split == "all":
        return [kind(some, **options)]
    if split == "muon":  # matrices of more than one row have their own optimizer
        flat = {p for p in some if p.ndim == 2}
        rest = [p for p in some if p not in flat]
        found: list[Optimizer] = [optim.Muon([p for p in some if p in flat], lr=0.01)]
        return [*found, kind(rest, **options)] if rest else found
    mine = [draw.random() < 0.5 for _ in some]  # also weight and bias of one layer apart
    parts = [[p for p, own in zip(some, mine) if own is side] for side in (True, False)]
    parts = [part for part in parts if part]
    if split == "groups":
        rates = [options["lr"], options["lr"] / 3]
        return [kind([{"params": p, "lr": r} for p, r in zip(parts, rates)], **options)]
    return [kind(part, **options) for part in parts]


def _for_sparse(draw: Random) -> Recipe:
    kind: Any = draw.choice(list(SPARSE))
    options = SPARSE[kind](draw)

    def make(network: nn.Module) -> list[Any]:
        apart = {
            p for m in network.modules() if getattr(m, "sparse", False) for p in m.parameters()
        }
        rest = [p for p in network.parameters() if p not in apart]
        return [kind(list(apart), **options), optim.AdamW(rest, lr=0.01)]

    return Recipe(make, False, False, False, f"{kind.__name__} {options} and AdamW")


def schedule(draw: Random, optimizers: Iterable[Any]) -> list[Any]:
    """Schedulers of all optimizers, and none as often."""
    choice = draw.choice(["none", "none", "step", "cycle", "warmup", "restarts"])
    found: list[Any] = []
    for wrapped in optimizers:
        optimizer = getattr(wrapped, "optimizer", wrapped)
        if choice == "step":
            found.append(optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        elif choice == "cycle":
            rate, cycles = optimizer.param_groups[0]["lr"], _has_momentum(optimizer)
            found.append(
                optim.lr_scheduler.OneCycleLR(
                    optimizer, 2 * rate, total_steps=100, cycle_momentum=cycles
                )
            )
        elif choice == "warmup":
            found.append(optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3))
        elif choice == "restarts":
            found.append(optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2))
    return found


def _has_momentum(optimizer: Optimizer) -> bool:
    return all(g.get("momentum") or "betas" in g for g in optimizer.param_groups)
