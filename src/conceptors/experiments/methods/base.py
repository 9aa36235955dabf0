"""What a method is: a learner that gets one task after another.

`Learner` is plain training; every method is a small subclass that changes a few of its steps:
`start_task`, `gradients`, `end_task`, `weights_for_test`. Parameters have a leading dimension of
seeds (1 for networks that are not stacked), so that all seeds learn at once without meeting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors._internal.cuda_graph import CudaGraph
from conceptors.experiments.events import Event, Progress
from conceptors.experiments.methods.settings import OwnSettings, Settings
from conceptors.experiments.networks import AlexNet, StackedMLP
from conceptors.experiments.scenarios import Scenario, Split


class Learner:
    """Plain training: learns every task, forgets the last one."""

    name: ClassVar[str] = "sgd"
    about: ClassVar[str] = "plain training, forgets"
    settings_type: ClassVar[type[OwnSettings]] = Settings
    needs_task_label: ClassVar[bool] = False  # when testing, also with one head for all tasks
    replay = True  # whether to use a recording where that is possible

    def __init__(
        self, scenario: Scenario, settings: OwnSettings, device: torch.device, progress: Progress
    ) -> None:
        self.scenario = scenario
        self.settings: Any = settings
        self.device = device
        self.progress = progress
        self.seeds = scenario.seeds
        self.model = self.network().to(device)
        self.extras: list[dict[str, Any]] = [{} for _ in self.seeds]  # into the results
        self.active = torch.ones(
            len(self.seeds), device=device
        )  # 0: reached its goal, stands still

    # --- what methods change --------------------------------------------------------------

    def network(self) -> nn.Module:
        """What learns: inputs `[seeds, batch, ...]` to outputs `[seeds, batch, classes]`."""
        return build_network(self.scenario, self.settings)

    def start_task(self, number: int) -> None:
        """Before the first step of a task."""

    def training_split(self, number: int) -> Split:
        """What is trained on."""
        return self.scenario.tasks[number].train

    def trained(self) -> list[nn.Parameter]:
        """What the optimizer of a task changes, asked once the task has started."""
        return list(self.model.parameters())

    def forward(self, x: Tensor) -> Tensor:
        """Outputs while training."""
        out: Tensor = self.model(x)
        return out

    def outputs(self, x: Tensor, number: int) -> Tensor:
        """Outputs while testing on samples of a task."""
        out: Tensor = self.model(x)
        return out

    def gradients(self, number: int) -> None:
        """After the backward pass: change p.grad where the method asks for it."""

    def guarded(self, optimizer: torch.optim.Optimizer, finish: Callable[[], None]) -> None:
        """Before the first step of a task: `finish` is to be called on gradients as they are used,
        between `gradients` and the step.
        """
        optimizer.register_step_pre_hook(lambda *_: finish())

    def drifts(self) -> bool:
        """Whether weights also move without a gradient."""
        return bool(self.settings.momentum > 0 or self.settings.decay > 0)

    def end_task(self, number: int) -> None:
        """After the last step of a task."""

    def stored_numbers(self) -> list[int] | None:
        """How many numbers each seed keeps between tasks, besides weights; None if not counted."""
        return None

    @contextmanager
    def weights_for_test(self) -> Iterator[None]:
        """The weights that are tested, where they are not those that are trained."""
        yield

    # --- training -------------------------------------------------------------------------

    def learn(self, number: int) -> list[dict[str, Any]]:
        """Learn a task; its history, one a seed."""
        s = self.settings
        split = self.training_split(number)
        self.start_task(number)
        total = self.steps(number)
        stream = Stream(split.sizes(), self.seeds, number, s.batch, total, self.device)
        rate = s.later_rate if number and s.later_rate else s.rate
        trained = self.trained()
        optimizer = torch.optim.SGD(trained, lr=rate, momentum=s.momentum, weight_decay=s.decay)
        places = stream.places(0).clone()
        active = self.active.fill_(1)
        latest = torch.zeros(len(self.seeds), device=self.device)  # loss
        checks = [0] * len(self.seeds)  # up to where each seed stopped
        drifting = s.stop_above > 0 and self.drifts()

        def finish() -> None:
            if s.gradient == "unit":
                to_unit_length(self.model)
            self.hold_finished_seeds(active)

        self.guarded(optimizer, finish)

        def step_once() -> None:
            x, y = split.take(places)
            losses = self.loss(self.forward(x), y, number)  # [seeds, batch]
            by_seed = losses.sum(1) if s.gradient != "mean" else losses.mean(1)
            optimizer.zero_grad(set_to_none=True)
            by_seed.sum().backward()
            self.gradients(number)
            before = [p.detach().clone() for p in trained] if drifting else []
            optimizer.step()
            for parameter, value in zip(trained, before):
                going = active.reshape(-1, *[1] * (parameter.ndim - 1)) > 0
                parameter.data.copy_(torch.where(going, parameter, value))
            latest.copy_(losses.detach().mean(1))

        run_step = CudaGraph(step_once) if self.replayable() else step_once
        history: dict[str, list[Any]] = {"step": [], "loss": [], "validation": []}
        self.model.train()
        for step in range(1, total + 1):
            places.copy_(stream.places(step - 1))
            run_step()
            if step % s.check_every == 0 or step == total:
                found = self.accuracy(self.scenario.tasks[number].validation, number, s.validation)
                history["step"].append(step)
                history["loss"].append(latest.tolist())
                history["validation"].append(found.tolist())
                self.progress(self._steps_done(number, step, total, float(found.mean())))
                checks = [n + int(on) for n, on in zip(checks, active.tolist())]
                active *= (found <= self.threshold(number)).to(active)
                if not bool(active.any()):
                    break
        self.end_task(number)
        for extra, count in zip(self.extras, self.stored_numbers() or ()):
            extra["stored_numbers"] = count
        return [
            {
                "task": number,
                "step": history["step"][: checks[i]],
                # JSON has no NaN: the loss of a run that diverged is null
                "loss": [
                    row[i] if math.isfinite(row[i]) else None
                    for row in history["loss"][: checks[i]]
                ],
                "validation": [row[i] for row in history["validation"][: checks[i]]],
            }
            for i in range(len(self.seeds))
        ]

    def _steps_done(self, number: int, step: int, steps: int, validation: float) -> Event:
        tasks = len(self.scenario.tasks)
        return Event(
            "step", self.name, tuple(self.seeds), number + 1, tasks, step, steps, validation
        )

    def replayable(self) -> bool:
        """Whether a step is the same work every time, so that a GPU can replay a recording."""
        return self.replay and self.device.type == "cuda" and isinstance(self.model, StackedMLP)

    def hold_finished_seeds(self, active: Tensor) -> None:
        """Seeds that have reached their goal stand still."""
        if self.settings.stop_above <= 0:
            return
        for parameter in self.trained():
            if parameter.grad is not None:
                parameter.grad *= active.reshape(-1, *[1] * (parameter.ndim - 1))

    def threshold(self, number: int) -> float:
        s = self.settings
        if s.stop_above <= 0:
            return math.inf
        if number and s.stop_above_later > 0:
            return float(min(s.stop_above, s.stop_above_later))
        return float(s.stop_above)

    def steps(self, number: int) -> int:
        """Steps of a task: the same for all seeds, whatever their share of the classes."""
        s = self.settings
        if s.steps > 0:
            return int(s.steps)
        total = sum(sum(t.train.sizes()) for t in self.scenario.tasks) / len(self.seeds)
        share = total / len(self.scenario.tasks)
        return int(max(1, round(s.epochs * share / s.batch)))

    def loss(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        """Loss of every sample `[seeds, batch]`."""
        kind = self.settings.loss
        outputs = self.own_head(outputs, y, number)
        if kind == "softmax":
            return functional.cross_entropy(
                outputs.flatten(0, 1), y.flatten(), reduction="none"
            ).reshape(y.shape)
        wanted = functional.one_hot(y, outputs.shape[-1]).to(outputs)
        if kind == "bce":
            return functional.binary_cross_entropy_with_logits(
                outputs, wanted, reduction="none"
            ).sum(-1)
        return 0.5 * (torch.sigmoid(outputs) - wanted).square().sum(-1)

    def own_head(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        """Outputs in training on samples of labels y: those of this task's head."""
        return self.masked(outputs, number)

    def masked(self, outputs: Tensor, number: int) -> Tensor:
        """With one head per task, the outputs of other heads count for nothing."""
        classes = self.scenario.tasks[number].classes
        if not self.scenario.heads or classes is None:
            return outputs
        return outputs.masked_fill(~classes[:, None], -1e4)

    # --- testing --------------------------------------------------------------------------

    @torch.no_grad()
    def accuracy(self, split: Split, number: int, limit: int | None = None) -> Tensor:
        """Percent right of every seed `[seeds]`."""
        sizes = torch.tensor(split.sizes())
        if limit is not None:
            sizes = sizes.clamp_max(limit)
        right = torch.zeros(len(self.seeds), device=self.device)
        self.model.eval()
        longest = int(sizes.max())
        for start in range(0, longest, 1000):
            places = torch.arange(start, min(start + 1000, longest)).expand(len(sizes), -1)
            counted = (places < sizes[:, None]).to(self.device)
            x, y = split.take(places.minimum(sizes[:, None] - 1).to(self.device))
            guess = self.masked(self.outputs(x, number), number).argmax(-1)
            right += ((guess == y) & counted).sum(1)
        self.model.train()
        return 100 * right.cpu() / sizes

    def test(self) -> Tensor:
        """Test accuracy on all tasks `[seeds, tasks]`."""
        with self.weights_for_test():
            found = [self.accuracy(task.test, k) for k, task in enumerate(self.scenario.tasks)]
        return torch.stack(found, 1)


class Stream:
    """Which samples every step uses: each seed goes through its own samples in its own order."""

    def __init__(
        self,
        sizes: list[int],
        seeds: list[int],
        task: int,
        batch: int,
        steps: int,
        device: torch.device,
    ) -> None:
        needed = steps * batch
        orders = []
        for size, seed in zip(sizes, seeds):
            generator = torch.Generator().manual_seed(104_729 * (task + 1) + seed)
            rounds = -(-needed // size)
            parts = [torch.randperm(size, generator=generator) for _ in range(rounds)]
            orders.append(torch.cat(parts)[:needed].to(torch.int32))
        self._orders = torch.stack(orders).to(device)
        self._batch = batch

    def places(self, step: int) -> Tensor:
        """`[seeds, batch]`."""
        return self._orders[:, step * self._batch : (step + 1) * self._batch].long()


def to_unit_length(model: nn.Module) -> None:
    """Scale each neuron's incoming gradient, bias included, to length 1.

    Gradients shorter than 1e-6 are multiplied by 1e6 only, as TensorFlow's l2_normalize does: an
    output that is never wanted would be driven to exactly 0 otherwise, and never learn again.
    """
    for layer in model.modules():
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if not isinstance(weight, nn.Parameter) or weight.grad is None or weight.ndim < 2:
            continue
        lead = 2 if weight.ndim == 3 else 1
        square = weight.grad.flatten(lead).square().sum(-1)
        if isinstance(bias, nn.Parameter) and bias.grad is not None:
            square = square + bias.grad.square()
        length = square.clamp_min(1e-12).sqrt()
        weight.grad /= length.reshape(*length.shape, *[1] * (weight.ndim - lead))
        if isinstance(bias, nn.Parameter) and bias.grad is not None:
            bias.grad /= length


def build_network(scenario: Scenario, settings: Settings) -> nn.Module:
    """The network for a scenario: fully connected, or AlexNet for images in colour."""
    if len(scenario.inputs) == 3:
        return AlexNet(scenario.classes, scenario.seeds)
    sizes = [math.prod(scenario.inputs), *settings.sizes, scenario.classes]
    s = settings
    return StackedMLP(sizes, s.activation, s.init, s.scale, scenario.seeds, bias=s.bias)
