"""Optimizers drawn by a seed: torch's with all kinds of settings, and two of others."""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LinearLR, OneCycleLR, StepLR

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
        moved: Any = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norms = torch.stack([p.grad.norm() for p in moved])
        scale = self.param_groups[0]["rho"] / norms.norm().clamp_min(1e-12)
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


_WAY: list[dict[str, bool]] = [{}, {}, {"foreach": True}, {"foreach": False}, {"fused": True}]
_SIGN = [False, False, True]
TORCH: dict[type[Optimizer], dict[str, list[Any]]] = {
    optim.SGD: {"lr": [0.01, 0.03], "momentum": [0.0, 0.0, 0.9], "maximize": _SIGN, "way": _WAY},
    optim.Adam: {"lr": [0.01], "amsgrad": [False, True], "maximize": _SIGN, "way": _WAY},
    optim.AdamW: {"lr": [0.01], "amsgrad": [False, True], "way": [*_WAY, {"maximize": True}]},
    optim.RAdam: {"lr": [0.05], "decoupled_weight_decay": [False, True]},
    optim.RMSprop: {"lr": [0.005], "momentum": [0.0, 0.5], "centered": [False, True]},
    optim.Rprop: {"lr": [0.005], "step_sizes": [(1e-6, 0.02)]},
    optim.Adagrad: {"lr": [0.05], "lr_decay": [0.0, 0.1], "way": _WAY},
    optim.Adafactor: {"lr": [0.02]},
    optim.LBFGS: {"lr": [0.1], "max_iter": [2, 3], "line_search_fn": [None, "strong_wolfe"]},
    SAM: {"lr": [0.01]},
}
SPARSE: dict[type[Optimizer], dict[str, list[Any]]] = {
    optim.SparseAdam: {"lr": [0.02]},
    optim.SGD: {"lr": [0.1], "momentum": [0.0, 0.9]},
    optim.Adagrad: {"lr": [0.05]},
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
    options = {name: draw.choice(values) for name, values in TORCH[kind].items()}
    options |= options.pop("way", {})
    if kind not in (optim.Rprop, optim.LBFGS, SAM):
        options["weight_decay"] = draw.choice([0.0, 0.0, 0.1])
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
        optimizers = _split(kind, options, split, list(network.parameters()), chosen)
        return [Lookahead(optimizer) for optimizer in optimizers] if ahead else optimizers

    text = f"{'Lookahead of ' * ahead}{kind.__name__} {split} {options}"
    grows = split in ONE and not closure
    return Recipe(make, closure, bool(options.get("maximize")), grows, text)


def _split(
    kind: Any, options: Mapping[str, Any], split: str, parameters: Parameters, chosen: int
) -> list[Optimizer]:
    draw = Random(chosen)
    if split == "all":
        return [kind(parameters, **options)]
    if split == "muon":  # matrices have their own optimizer
        matrices = [p for p in parameters if p.ndim == 2]
        others = [p for p in parameters if p.ndim != 2]
        return [optim.Muon(matrices, lr=0.01), *([kind(others, **options)] if others else [])]
    sides = [draw.random() < 0.5 for _ in parameters]  # also weight and bias of one layer apart
    parts = [[p for p, s in zip(parameters, sides) if s is side] for side in (True, False)]
    parts = [part for part in parts if part]
    if split == "groups":
        rates = [options["lr"], options["lr"] / 3]
        return [kind([{"params": p, "lr": r} for p, r in zip(parts, rates)], **options)]
    return [kind(part, **options) for part in parts]


def _for_sparse(draw: Random) -> Recipe:
    kind: Any = draw.choice(list(SPARSE))
    options = {name: draw.choice(values) for name, values in SPARSE[kind].items()}

    def make(network: nn.Module) -> list[Any]:
        layers = [m for m in network.modules() if getattr(m, "sparse", False)]
        sparse = {p for layer in layers for p in layer.parameters()}
        dense = [p for p in network.parameters() if p not in sparse]
        return [kind(list(sparse), **options), optim.AdamW(dense, lr=0.01)]

    return Recipe(make, False, False, False, f"{kind.__name__} {options} and AdamW")


def schedule(draw: Random, optimizers: Iterable[Any]) -> list[Any]:
    """Schedulers of all optimizers, or none."""
    choice = draw.choice(["none", "none", "step", "cycle", "warmup", "restarts"])
    schedulers: list[Any] = []
    for wrapped in optimizers:
        optimizer = getattr(wrapped, "optimizer", wrapped)
        if choice == "step":
            schedulers.append(StepLR(optimizer, 2, 0.5))
        elif choice == "cycle":
            groups = optimizer.param_groups
            cycles = all(g.get("momentum") or "betas" in g for g in groups)
            rate = 2 * groups[0]["lr"]
            schedulers.append(OneCycleLR(optimizer, rate, 100, cycle_momentum=cycles))
        elif choice == "warmup":
            schedulers.append(LinearLR(optimizer, 0.1, 1.0, 3))
        elif choice == "restarts":
            schedulers.append(CosineAnnealingWarmRestarts(optimizer, 2))
    return schedulers
