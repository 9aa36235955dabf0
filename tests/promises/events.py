"""What may happen between two steps of a task, each a function of the history and the task."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from promises.history import History, InterruptedStepError, Task, evaluating, unfreeze
from promises.optimizers import recipe
from promises.parts import coin


def checkpoint(history: History, task: Task) -> None:
    """Everything saved, and loaded into new objects in some order."""
    network = history.plan.make(task.number)
    weights = copy.deepcopy(history.network.state_dict())
    steps = [copy.deepcopy(optimizer.state_dict()) for optimizer in history.optimizers]
    with history.asking():
        state = copy.deepcopy(history.shield.state_dict())
    history.shield.detach()
    places = _places(history)
    for p, old in zip(network.parameters(), history.network.parameters(), strict=True):
        p.requires_grad_(old.requires_grad)
    history.network = network
    weights_first, guarded_first = coin(history.draw), coin(history.draw)
    if weights_first:
        network.load_state_dict(weights)
    history.attach()
    if guarded_first:
        history.guard()
    with history.asking():
        history.shield.load_state_dict(state)
    if not weights_first:
        network.load_state_dict(weights)
    if not guarded_first:
        history.guard()
    if places == _places(history):  # else groups were added since they were made
        for optimizer, saved in zip(history.optimizers, steps, strict=True):
            optimizer.load_state_dict(saved)


def _places(history: History) -> list[list[list[int]]]:
    """Which parameters the groups of all optimizers have, by their numbers."""
    number = {id(p): i for i, p in enumerate(history.network.parameters())}
    return [
        [[number[id(p)] for p in group["params"]] for group in optimizer.param_groups]
        for optimizer in history.optimizers
    ]


def reattach(history: History, task: Task) -> None:
    """Another shield takes over from the state of the first."""
    with history.asking():
        state = history.shield.state_dict()
        history.shield.detach()
        history.attach()
        history.shield.load_state_dict(state)
    if coin(history.draw):
        history.guard()
    else:
        with history.asking():
            for optimizer in history.optimizers:
                history.shield.guard(optimizer)


def train_a_copy(history: History, task: Task) -> None:
    """Steps of a copy of the network raise no warning."""
    twin: Any = copy.deepcopy(history.network)
    optimizer = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], lr=0.1)
    twin(task.batches[0], task.number).square().mean().backward()
    with history.listening():
        optimizer.step()


def step_in_evaluation(history: History, task: Task) -> None:
    history.backward(task)  # and a step that was skipped, as after an overflow
    with evaluating(history.network):
        history.step(task)


def miss_gradients(history: History, task: Task) -> None:
    """A step where some parameters have none."""
    if history.recipe.takes_closure:
        return
    for optimizer in history.optimizers:
        optimizer.zero_grad()
    history.backward(task)
    for p in history.network.parameters():
        p.grad = p.grad if coin(history.draw) else None
    with history.listening():
        history.step_optimizers()


def replace_optimizers(history: History, task: Task) -> None:
    history.recipe = recipe(history.draw, history.plan.sparse)
    history.log.append(history.recipe.text)
    history.guard()


def interrupt_a_step(history: History, task: Task) -> None:
    history.interrupting = True
    try:
        history.step(task)
    except InterruptedStepError:
        history.log.append("interrupted")
    history.interrupting = False


def explain(history: History, task: Task) -> None:
    with history.asking():
        history.shield.explain()


def forget_to_guard(history: History, task: Task) -> None:
    """A new optimizer makes a step, and nobody guards it; seldom, as little can be seen then."""
    if not coin(history.draw, 0.2):
        return
    history.backward(task)
    gradients = [(p, p.grad) for p in history.network.parameters() if p.grad is not None]
    stranger = torch.optim.SGD([p for p, g in gradients if not g.is_sparse], lr=0.1)
    with history.listening():
        stranger.step()
    history.log.append("stepped")


def rest(history: History, task: Task) -> None:
    """Some parameters do not learn for two steps."""
    frozen = history.freeze()
    for _ in range(2):
        history.step(task)
    unfreeze(frozen)
    history.step(task)


EVENTS: list[Callable[[History, Task], None]] = [checkpoint, checkpoint, reattach, train_a_copy]
EVENTS += [step_in_evaluation, miss_gradients, replace_optimizers, interrupt_a_step]
EVENTS += [explain, forget_to_guard, rest]
