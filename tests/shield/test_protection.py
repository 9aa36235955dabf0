"""Later training leaves outputs on old data alone: every layer type, every optimizer.

With hard conceptors they stay within rounding, where the same training without a shield moves them
far, and the shielded model does learn.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from conceptors import Shield
from helpers import drift, weights
from layers.case import there
from layers.cases import BY_NAME, CASES, REMARKS, Case, Draw, Inputs, flat, run

pytestmark = REMARKS

Make = Callable[..., Optimizer]

STEPS = 25

OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(optim.SGD, lr=0.1),
    "sgd-momentum": partial(optim.SGD, lr=0.05, momentum=0.9),
    "sgd-nesterov": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, dampening=0),
    "sgd-decay": partial(optim.SGD, lr=0.1, weight_decay=0.1),
    "sgd-fused": partial(optim.SGD, lr=0.1, momentum=0.5, fused=True),
    "adam": partial(optim.Adam, lr=0.02),
    "adamw": partial(optim.AdamW, lr=0.02, weight_decay=0.1),
    "adamw-fused": partial(optim.AdamW, lr=0.02, weight_decay=0.1, fused=True),
    "adamax": partial(optim.Adamax, lr=0.02),
    "nadam": partial(optim.NAdam, lr=0.02, decoupled_weight_decay=True, weight_decay=0.1),
    "radam": partial(optim.RAdam, lr=0.05),
    "adadelta": partial(optim.Adadelta, lr=5.0),
    "asgd": partial(optim.ASGD, lr=0.2, lambd=0.01, weight_decay=0.01),
    "rmsprop": partial(optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "rprop": partial(optim.Rprop, lr=0.01, step_sizes=(1e-6, 0.05)),
    "adagrad": partial(optim.Adagrad, lr=0.1),
    "adafactor": partial(optim.Adafactor, lr=0.05),
    "lbfgs": partial(optim.LBFGS, lr=0.2, max_iter=4),
    "lbfgs-wolfe": partial(optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
}
SPARSE: dict[str, Make] = {  # few optimizers take sparse gradients
    "sgd-momentum": OPTIMIZERS["sgd-momentum"],
    "adamw": partial(optim.SparseAdam, lr=0.05),
}


with_room = pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name != "gain"],  # one number is either kept or learned
    ids=lambda case: case.name,
)


def outputs(layer: nn.Module, inputs: Inputs) -> Tensor:
    """Of the layer as it is used: in evaluation mode."""
    was = layer.training
    with torch.no_grad():
        numbers = flat(run(layer.eval(), inputs)).clone()
    layer.train(was)
    return numbers


class Outcome(NamedTuple):
    drift: float  # of the outputs on old data, relative
    losses: tuple[float, float]  # on new data, before and after
    moved: float  # the largest change of a weight


def learn(
    case: Case, make: Make, dtype: torch.dtype, *, shielded: bool, device: str = "cpu"
) -> Outcome:
    """Train on new data after old data was remembered (or not)."""
    layer = case.build(dtype).to(device)
    old = there((case.old or case.inputs)(Draw(0, dtype)), device)
    new = there(case.inputs(Draw(1, dtype)), device)
    optimizer = make(layer.parameters())
    if shielded:
        shield = Shield(layer, aperture=1e4, hard=True)
        shield.guard(optimizer)
        shield.remember([old], feed=run)
    before, first = outputs(layer, old), outputs(layer, new)
    target = 3 * Draw(2, dtype).normal(len(first)).to(device)
    start = weights(layer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (flat(run(layer, new)) - target).square().mean()
        loss.backward()
        return loss.detach()

    layer.train()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)  # of dropout
        for step in range(STEPS):
            if isinstance(optimizer, optim.LBFGS):
                optimizer.step(lambda: float(closure()))
            else:
                closure()
                optimizer.step()
            if not shielded and step in (1, 3, 7, 15) and drift(outputs(layer, old), before) > 0.1:
                break  # far enough to compare with
    losses = [float((y - target).square().mean()) for y in (first, outputs(layer, new))]
    moved = max(float((p - q).abs().max()) for p, q in zip(weights(layer), start))
    return Outcome(drift(outputs(layer, old), before), (losses[0], losses[1]), moved)


@cache
def plain(case: Case, make: Make) -> Outcome:
    return learn(case, make, torch.float32, shielded=False)


def check(case: Case, make: Make, dtype: torch.dtype, device: str = "cpu") -> None:
    outcome = learn(case, make, dtype, shielded=True, device=device)
    assert outcome.drift < {torch.float32: 1e-5, torch.float64: 1e-10}[dtype]
    assert plain(case, make).drift > 0.1
    assert outcome.losses[1] < outcome.losses[0]
    assert outcome.moved > 0.01


@pytest.mark.parametrize(
    ("name", "dtype"), [("sgd-momentum", torch.float64), ("adamw", torch.float32)], ids=str
)
@with_room
def test_every_layer_keeps_what_it_does(case: Case, name: str, dtype: torch.dtype) -> None:
    check(case, (SPARSE if "sparse" in case.name else OPTIMIZERS)[name], dtype)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("layer", "dtype"), [("linear-3d", torch.float32), ("attention", torch.float64)], ids=str
)
def test_every_optimizer_is_guarded(layer: str, name: str, dtype: torch.dtype) -> None:
    check(BY_NAME[layer], OPTIMIZERS[name], dtype)
