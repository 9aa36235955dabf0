"""Ideas for tasks that share a subspace, tried on validation images, a whole grid at once.

Disjoint MNIST, one head, no stored images but where said. Every trial is one network of a stack;
its settings are entries of vectors `[trials]`, so that a whole grid learns in seconds:

    python experiments/shared_subspace.py --device cuda --out results/ablation/shared-subspace.json

Weights are [W | b]. After a task R grows by the second moments of each layer's inputs, and steps
are G F with F = α⁻² (R + α⁻² I)⁻¹: plain conceptor-aided back-propagation. The ideas:

- smooth: the first layer's initial weights are blurred, as images are.
- average: a task ends with a running mean of its weights.
- covariance β: R = Σ p_c (μ_c μ_cᵀ + β Σ_c), class means and covariances weighted apart.
- output factor γ: the penalty view. With G = (1 - γ) I + γ E[∂y/∂h ∂y/∂hᵀ] a step is divided by
  1 + α² λ_i(G) λ_j(R) in the eigenvectors of both; γ = 0 is plain.
- replay: that share of a batch for every old class is drawn from a Gaussian of its images.
- discriminant head: the last layer in closed form from sums of features (linear discriminants).
- dropout, cosine: ways to train that might leave more room, or settle better.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conceptors._internal.cuda_graph import CudaGraph
from conceptors.estimators.lift import blurred
from conceptors.experiments.scenarios import build

EPOCHS, BATCH, CLASSES, SAMPLES, POOL = 20, 64, 10, 20_000, 4_000


@dataclass(frozen=True)
class Trial:
    """Settings of one network."""

    input_aperture: float = 270.0
    aperture: float = 23.0
    rate: float = 0.4
    later_rate: float = 4.0
    scale: float = 1.7
    smooth: float = 0.0
    average: float = 0.0
    covariance: float = 1.0
    output_factor: float = 0.0
    replay: float = 0.0
    dropout: float = 0.0
    cosine: bool = False


def grid(**choices: Any) -> list[Trial]:
    """All combinations."""
    lists = [v if isinstance(v, list) else [v] for v in choices.values()]
    return [Trial(**dict(zip(choices, values))) for values in itertools.product(*lists)]


GRIDS: dict[str, dict[str, Any]] = {
    "plain": {
        "input_aperture": [150.0, 270.0, 500.0],
        "aperture": [10.0, 23.0, 50.0],
        "later_rate": [2.0, 4.0, 8.0],
    },
    "average": {"average": 0.9995, "later_rate": [4.0, 8.0]},
    "smooth": {"smooth": [0.7, 1.0, 1.5, 2.0], "input_aperture": [270.0, 600.0]},
    "smooth, average": {
        "smooth": [0.7, 1.0, 1.5],
        "average": 0.9995,
        "input_aperture": [270.0, 600.0, 1200.0],
        "aperture": [23.0, 40.0],
    },
    "covariance": {
        "covariance": [0.03, 0.1, 0.3],
        "input_aperture": [270.0, 800.0],
        "aperture": [23.0, 60.0],
    },
    "output factor": {
        "output_factor": [0.5, 0.9, 0.99],
        "input_aperture": [270.0, 800.0],
        "later_rate": [1.0, 4.0],
    },
    "output factor, smooth, average": {
        "output_factor": [0.3, 0.6],
        "smooth": 1.0,
        "average": 0.9995,
        "input_aperture": [600.0, 1200.0],
    },
    "replay": {
        "replay": 0.2,
        "input_aperture": [1e-3, 30.0, 270.0],
        "aperture": [1e-3, 3.0, 23.0],
        "later_rate": [0.4, 2.0],
    },
    "dropout": {"dropout": 0.3, "smooth": [0.0, 1.0, 2.0], "cosine": [False, True]},
    "cosine": {"cosine": True, "smooth": [0.0, 1.0, 2.0]},
}


class Stack:
    """Networks 784-hidden-10, one a trial: ReLU, sigmoid outputs, cross-entropy."""

    def __init__(self, trials: list[Trial], hidden: int, device: torch.device) -> None:
        self.trials, self.device = trials, device
        self.sizes = [784, hidden, CLASSES]
        self.weights = [self._drawn(layer) for layer in range(2)]  # [W | b]
        self.R = [torch.zeros(w.shape[0], *2 * w.shape[2:], **self._wide) for w in self.weights]
        self.G = torch.zeros(len(trials), hidden, hidden, **self._wide)
        self.free: list[Tensor | None] = [None, None]  # F of every layer
        self.eigen: tuple[Tensor, Tensor, Tensor] | None = None  # U, V, divisor: output factor
        self.sums: list[tuple[Tensor, Tensor, Tensor]] = []  # of features, a task each

    @property
    def _wide(self) -> dict[str, Any]:
        return {"dtype": torch.float64, "device": self.device}

    def of(self, name: str) -> Tensor:
        """A setting of all trials `[trials]`."""
        return torch.tensor([float(getattr(t, name)) for t in self.trials], device=self.device)

    def _drawn(self, layer: int) -> Tensor:
        inputs, outputs = self.sizes[layer], self.sizes[layer + 1]
        draw = torch.Generator().manual_seed(layer)
        first = torch.rand(outputs, inputs, generator=draw) * 2 - 1
        found = []
        for trial in self.trials:
            own = first
            if layer == 0 and trial.smooth:
                own = blurred(first, (1, 28, 28), trial.smooth)
            found.append(own * trial.scale / math.sqrt(inputs))
        made = torch.stack(found).to(self.device)
        return torch.cat([made, made.new_zeros(*made.shape[:2], 1)], 2)

    def forward(self, x: Tensor, weights: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Hidden activities and outputs of inputs `[trials, n, 784 + 1]`."""
        first, last = weights or self.weights
        h = with_one(torch.relu(x @ first.mT))
        return h, h @ last.mT

    # --- after a task -----------------------------------------------------------------------

    @torch.no_grad()
    def remember(self, x: Tensor, y: Tensor) -> None:
        """Inputs `[n, 785]` with labels `[n]`."""
        beta = self.of("covariance")
        for i in range(len(self.trials)):
            own = [w[i : i + 1] for w in self.weights]
            h = self.forward(x[None], own)[0][0]
            self.R[0][i] += moment(x, y, float(beta[i]))
            self.R[1][i] += moment(h, y, float(beta[i]))
            if self.trials[i].output_factor:
                J = own[1][0, :, :-1] * (h[: SAMPLES // 5, None, :-1] > 0)  # [n, classes, hidden]
                J = J.flatten(0, 1)
                self.G[i] += (J.mT @ J).double() / len(h[: SAMPLES // 5])
            hot = torch.nn.functional.one_hot(y, CLASSES).double()
            wide = h.double()
            self.sums.append((wide.mT @ wide, hot.mT @ wide, hot.sum(0)))
        apertures = self.of("input_aperture"), self.of("aperture")
        self.free = [free_space(R, a) for R, a in zip(self.R, apertures)]
        if any(t.output_factor for t in self.trials):
            self._factor(apertures[0])

    def _factor(self, aperture: Tensor) -> None:
        share = self.of("output_factor").double()[:, None, None]
        size = self.G.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        G = (1 - share) * torch.eye(self.G.shape[1], **self._wide) + share * self.G / size
        of_outputs, U = torch.linalg.eigh(G)
        of_inputs, V = torch.linalg.eigh(self.R[0])
        product = of_outputs.clamp_min(0)[:, :, None] * of_inputs.clamp_min(0)[:, None]
        divisor = 1 + aperture.double().square()[:, None, None] * product
        self.eigen = (U.float(), V.float(), divisor.float())

    def discriminants(self, ridge: float = 1e-4) -> Tensor:
        """The last layer in closed form, from the sums of all tasks."""
        count, found = len(self.trials), []
        for i in range(count):
            total, by_class, n = (sum(parts) for parts in zip(*self.sums[i::count]))
            means = (by_class / n[:, None])[:, :-1]
            prior = n / n.sum()
            within = total[:-1, :-1] / n.sum() - (means * prior[:, None]).mT @ means
            within += ridge * within.diagonal().mean() * torch.eye(len(within), **self._wide)
            rows = torch.linalg.solve(within, means.mT).mT
            bias = prior.log() - 0.5 * (rows * means).sum(1)
            found.append(torch.cat([rows, bias[:, None]], 1).float())
        return torch.stack(found)

    # --- a task -------------------------------------------------------------------------------

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor, number: int, replayed: tuple[Tensor, Tensor]) -> None:
        """Inputs `[n, 785]`, labels `[n]`, and what is drawn of earlier classes."""
        steps = int(EPOCHS * len(x) / BATCH)
        drawn = round(self.trials[0].replay * BATCH * len(replayed[1].unique()))
        places = torch.zeros(len(self.trials), BATCH, dtype=torch.long, device=self.device)
        old = torch.zeros(len(self.trials), max(drawn, 1), dtype=torch.long, device=self.device)
        rate = self.of("later_rate" if number else "rate")
        pace = rate[:, None, None].clone()
        keep, drop = self.of("average"), self.of("dropout")[:, None, None]
        dropping = bool(drop.any())
        means = [w.clone() for w in self.weights]
        eye = torch.eye(CLASSES, device=self.device)

        def step() -> None:
            rows, wanted = x[places], eye[y[places]]
            if drawn:
                rows = torch.cat([rows, replayed[0][old]], 1)
                wanted = torch.cat([wanted, eye[replayed[1][old]]], 1)
            h = torch.relu(rows @ self.weights[0].mT)
            kept = (torch.rand_like(h) >= drop) / (1 - drop) if dropping else 1.0
            h = with_one(h * kept)
            d = (torch.sigmoid(h @ self.weights[1].mT) - wanted) / BATCH
            back = (d @ self.weights[1][..., :-1]) * (h[..., :-1] > 0) * kept
            for layer, error, inputs in ((1, d, h), (0, back, rows)):
                free = self.free[layer]
                if layer == 0 and self.eigen is not None:
                    U, V, divisor = self.eigen
                    gradient = U @ ((U.mT @ (error.mT @ inputs) @ V) / divisor) @ V.mT
                else:
                    gradient = error.mT @ (inputs if free is None else inputs @ free)
                self.weights[layer].sub_(pace * gradient)
            for mean, weight in zip(means, self.weights):
                mean.lerp_(weight, (1 - keep)[:, None, None])

        run: Callable[[], None] = step
        if self.device.type == "cuda":
            run = CudaGraph(step, exact=False)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(number))
        draw = torch.Generator(self.device).manual_seed(number)
        order = order.repeat(-(-steps * BATCH // len(x)))[: steps * BATCH].to(self.device)
        cosine = self.of("cosine")
        for k in range(steps):
            places.copy_(order[k * BATCH : (k + 1) * BATCH].expand(len(self.trials), -1))
            if drawn:
                old.random_(0, len(replayed[1]), generator=draw)
            if k % 200 == 0:
                fade = 0.5 * (1 + math.cos(math.pi * k / steps))
                pace.copy_((rate * (1 - cosine * (1 - fade)))[:, None, None])
            run()
        for mean, weight in zip(means, self.weights):  # without average, the mean is the last
            weight.copy_(mean)


def with_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)


def moment(rows: Tensor, labels: Tensor, beta: float) -> Tensor:
    """Σ_c p_c (μ_c μ_cᵀ + β Σ_c)."""
    wide = rows.double()
    between = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
    for c in labels.unique():
        own = wide[labels == c]
        between += len(own) / len(wide) * own.mean(0)[:, None] * own.mean(0)
    return between + beta * (wide.mT @ wide / len(wide) - between)


def free_space(R: Tensor, aperture: Tensor) -> Tensor:
    """α⁻² (R + α⁻² I)⁻¹, in float64."""
    least = aperture.double().pow(-2)[:, None, None]
    eye = torch.eye(R.shape[1], dtype=R.dtype, device=R.device)
    return torch.stack([t * torch.linalg.inv(r + t * eye) for r, t in zip(R, least)]).float()


def gaussian(images: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Images drawn from the Gaussian of these, cut to [0, 1]."""
    mean = images.mean(0)
    values, vectors = torch.linalg.eigh((images - mean).double().T.cov())
    root = (vectors * values.clamp_min(0).sqrt()).float()
    noise = torch.randn(count, len(mean), generator=draw).to(images)
    made: Tensor = (mean + noise @ root.mT).clamp(0, 1)
    return made


def run(trials: list[Trial], tasks: int, device: torch.device, limit: int | None) -> Iterator[Any]:
    """Validation accuracies of a grid, the best first."""
    scenario = build("disjoint-mnist", [0], tasks=tasks, limit=limit).to(device)
    stack = Stack(trials, 800 if limit is None else 20, device)
    replayed: list[tuple[Tensor, Tensor]] = []
    draw = torch.Generator().manual_seed(0)
    for number, task in enumerate(scenario.tasks):
        x, y = (part[0] for part in task.train.take(_all(task.train, device)))
        pool = [torch.cat(parts) for parts in zip(*replayed)]
        empty = (x.new_zeros(0, 785), y[:0])
        stack.learn(with_one(x), y, number, (pool[0], pool[1]) if pool else empty)
        some = torch.randperm(len(x), generator=draw)[:SAMPLES].to(device)
        stack.remember(with_one(x[some]), y[some])
        for c in y.unique() if trials[0].replay else ():
            made = gaussian(x[y == c], POOL, draw)
            replayed.append((with_one(made), c.expand(len(made))))
    held = [task.validation.take(_all(task.validation, device)) for task in scenario.tasks]
    closed = [stack.weights[0], stack.discriminants()]
    scores: dict[str, list[Tensor]] = {"tasks": [], "discriminant_tasks": []}
    for x, y in held:
        for name, weights in (("tasks", stack.weights), ("discriminant_tasks", closed)):
            right = stack.forward(with_one(x), weights)[1].argmax(-1) == y
            scores[name].append(100 * right.double().mean(1))
    sizes = torch.tensor([float(y.shape[1]) for _, y in held], dtype=torch.float64, device=device)
    means = {k: (torch.stack(v, 1) @ sizes / sizes.sum()).tolist() for k, v in scores.items()}
    by_task = torch.stack(scores["tasks"], 1).tolist()
    for i in sorted(range(len(trials)), key=lambda i: -means["tasks"][i]):
        yield {
            "settings": {k: v for k, v in asdict(trials[i]).items() if v != getattr(Trial(), k)},
            "validation": round(means["tasks"][i], 3),
            "discriminant_head": round(means["discriminant_tasks"][i], 3),
            "tasks": [round(v, 2) for v in by_task[i]],
        }


def _all(split: Any, device: torch.device) -> Tensor:
    return torch.arange(split.counts[0], device=device)[None]


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ask.add_argument("--out", type=Path, required=True, help="a JSON file")
    ask.add_argument("--tasks", type=int, default=2)
    ask.add_argument("--only", nargs="*", default=list(GRIDS), choices=list(GRIDS), metavar="GRID")
    ask.add_argument("--limit", type=int, help="few images and small networks, to try it out")
    given = ask.parse_args()
    found: dict[str, list[Any]] = {}
    for name in given.only:
        started = time.perf_counter()
        rows = run(grid(**GRIDS[name]), given.tasks, torch.device(given.device), given.limit)
        found[name] = list(rows)
        best = found[name][0]
        seconds = time.perf_counter() - started
        print(f"{name}: {best['validation']:.2f} {best['settings']}, {seconds:.0f} s", flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"tasks": given.tasks, "grids": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
