"""Measure what a shield costs: time per step, time of `remember`, and peak memory on CUDA.

Plain and shielded steps take turns in one process; the ratio is the median over 41 rounds. On a CPU
everything runs on one thread and is measured in CPU time, which other programs hardly change.
`remember` is compared with forward passes over its batches. Networks with 784 or 64 inputs read
MNIST (if found) or scikit-learn's digits; others read made-up data. `layer-8b` needs a GPU; GPT-2,
ResNet-18, ViT-S/16 and MiniLM also need `transformers`.

    python -m benchmarks.cost --device cuda                  # adds rows to results/cost.csv
    python -m benchmarks.cost --device cpu --networks mlp cnn --out out/cost.csv
    python -m benchmarks.cost --table                        # print the newest rows

Takes about three minutes on a CPU core.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median, quantiles
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.benchmark import Timer
from torch.utils.benchmark import timer as gpu_timer

from benchmarks.common import Row, Table, choices, environment, find_device, markdown, options, say
from benchmarks.sequences import conv_net, digits, mlp
from conceptors import Shield
from conceptors.scenarios import build

PLAN = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
Batch = tuple[Tensor, Tensor]
KEY = ("run", "what", "setting")
Source = Callable[[int], Iterator[Tensor]]  # a task's number to batches of its inputs, on the CPU
NEW = 4  # batches of the new task
NAMES = ("mlp", "cnn", "layer-8b", "gpt2", "resnet18", "vit", "mini-lm")


@dataclass(frozen=True)
class Network:
    """A network, its batches, and how it is trained and shielded."""

    name: str
    about: str
    build: Callable[[], nn.Module]
    inputs: Source
    classes: int
    optimizer: Callable[[Any], Optimizer]
    aperture: Any = "auto"
    hard: bool = False
    rank: float | int | None = None
    autocast: bool = False  # bfloat16, on CUDA
    dtype: torch.dtype = torch.float32
    remembered: int = 8  # batches of the old task

    def batches(self, task: int, count: int, device: torch.device) -> list[Batch]:
        """Inputs and random labels; GPT-2 predicts one label per token."""
        draw = torch.Generator().manual_seed(task)
        batches = []
        for inputs in islice(self.inputs(task), count):
            x = inputs.to(self.dtype) if inputs.is_floating_point() else inputs
            shape = x.shape if self.name == "gpt2" else x.shape[:1]
            y = torch.randint(self.classes, shape, generator=draw)
            batches.append((x.to(device), y.to(device)))
        return batches

    def precision(self, device: torch.device) -> AbstractContextManager[Any]:
        if self.autocast and device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()

    def outputs(self, model: nn.Module, x: Tensor) -> Tensor:
        with self.precision(x.device):
            out = model(x)
        result: Tensor = getattr(out, "logits", out)
        return result

    def feed(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.outputs(model, batch[0])

    def shield(self, model: nn.Module) -> Shield:
        return Shield(model, aperture=self.aperture, hard=self.hard, rank=self.rank)


class Trainer:
    """Steps of one model over batches, again and again."""

    def __init__(self, network: Network, model: nn.Module, batches: list[Batch]) -> None:
        self.network, self.model, self.batches = network, model.train(), cycle(batches)
        self.optimizer = network.optimizer(model.parameters())

    def step(self) -> None:
        x, y = next(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        out = self.network.outputs(self.model, x)
        functional.cross_entropy(out.flatten(0, -2).float(), y.flatten()).backward()
        self.optimizer.step()


# --- networks -----------------------------------------------------------------------------


def adamw(parameters: Any) -> Optimizer:
    parameters = list(parameters)
    return torch.optim.AdamW(parameters, lr=1e-4, fused=parameters[0].is_cuda)


def sgd(rate: float, momentum: float = 0.0) -> Callable[[Any], Optimizer]:
    return partial(torch.optim.SGD, lr=rate, momentum=momentum)


def normal(*shape: int) -> Source:
    """Made-up batches with most of their energy in few directions, others for each task."""

    def batches(task: int) -> Iterator[Tensor]:
        draw = torch.Generator().manual_seed(task)
        scale = torch.logspace(0, -3, shape[-1])
        while True:
            yield torch.randn(*shape, generator=draw) * (scale.flip(0) if task else scale)

    return batches


def tokens(vocabulary: int, *shape: int) -> Source:
    def batches(task: int) -> Iterator[Tensor]:
        draw = torch.Generator().manual_seed(task)
        while True:
            yield torch.randint(vocabulary, shape, generator=draw)

    return batches


def images(count: int, width: int) -> Source:
    """Batches of MNIST (784 pixels) or of scikit-learn's digits (64): classes 0-4, then 5-9."""

    def batches(task: int) -> Iterator[Tensor]:
        tasks = _mnist() if width == 784 else _digits()
        if tasks is None:
            yield from normal(count, width)(task)
        else:
            yield from cycle(tasks[task].split(count)[:-1])

    return batches


@cache
def _mnist() -> list[Tensor] | None:
    """Training images of both tasks; None where MNIST is not found and cannot be downloaded."""
    try:
        tasks = build("disjoint-mnist", 0, tasks=2, limit=4000).tasks
    except RuntimeError as error:
        say(f"Made-up data replace MNIST, so ratios differ: {error}")
        return None
    return [task.train.take(torch.arange(len(task.train)))[0].flatten(1) for task in tasks]


@cache
def _digits() -> list[Tensor]:
    x, y = digits("0-1")[0]
    return [x[y < 5], x[y >= 5]]


def plain_networks(tiny: bool) -> list[Network]:
    """Small networks from torch layers, and the widest layer of a model of 8B parameters."""
    networks = []
    for entry in PLAN["perceptrons"]:
        widths = [20 if tiny and width == 800 else width for width in entry["sizes"]]
        count, name, aperture = entry["batch"], entry["optimizer"], entry["aperture"]
        about = f"{'-'.join(map(str, widths))}, batch {count}, {name}, aperture {aperture}"
        is_hard = entry.get("hard", False)
        source = images(count, widths[0]) if widths[0] in (64, 784) else normal(count, widths[0])
        make = adamw if name == "AdamW" else sgd(0.1)
        how: dict[str, Any] = {"aperture": aperture, "hard": is_hard, "remembered": 2000 // count}
        about += ", hard" * is_hard
        networks.append(Network("mlp", about, partial(mlp, *widths), source, 10, make, **how))
    cnn = "small CNN, batch 64, AdamW, aperture auto"
    networks.append(Network("cnn", cnn, conv_net, images(64, 784), 10, adamw, remembered=30))
    width, out, rows = (32, 64, 64) if tiny else (4096, 14336, 16384)
    for dtype in (torch.float32, torch.bfloat16):
        about = f"Linear {width} -> {out}, {rows} tokens, AdamW, {str(dtype)[6:]} weights"
        build = partial(nn.Linear, width, out, bias=False, dtype=dtype)
        how = {"aperture": 9.0, "rank": width // 8, "dtype": dtype}
        how["autocast"] = dtype == torch.float32
        source = normal(rows, width)
        networks.append(Network("layer-8b", about, build, source, out, adamw, **how))
    return networks


def transformers_networks() -> list[Network]:
    """GPT-2 small, ResNet-18 for 32 x 32 images, ViT-S/16 and MiniLM, with random weights."""
    import transformers

    def build(entry: dict[str, Any]) -> nn.Module:
        config = getattr(transformers, entry["config"])(**entry["sizes"])
        model: Any = getattr(transformers, entry["model"])(config)
        if entry["name"] == "resnet18":  # as is usual for images of 32 x 32
            model.resnet.embedder.pooler = nn.Identity()
            model.resnet.embedder.embedder.convolution.stride = (1, 1)
        result: nn.Module = model
        return result

    networks = []
    for entry in PLAN["transformers"]:
        source = tokens(*entry["tokens"]) if "tokens" in entry else normal(*entry["images"])
        make = sgd(0.002, 0.9) if entry.get("momentum") else adamw
        what = (entry["name"], entry["about"], partial(build, entry), source, entry["classes"])
        networks.append(Network(*what, make, **entry["options"]))
    return networks


# --- measurements -------------------------------------------------------------------------


def clock(device: torch.device) -> Callable[[], float]:
    """Return the wall time of an idle GPU, or the CPU time of this process."""
    return gpu_timer if device.type == "cuda" else process_time


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    time = clock(device)
    start = time()
    call()
    return time() - start


def side_by_side(
    steps: tuple[Callable[[], None], Callable[[], None]],
    device: torch.device,
    rounds: int,
    seconds: float,
) -> tuple[list[float], list[float]]:
    """Seconds per step, one number per round; the two take turns, and the first one alternates."""
    threads = torch.get_num_threads()
    timers = [
        Timer("step()", globals={"step": step}, num_threads=threads, timer=clock(device))
        for step in steps
    ]
    for timer in timers:
        timer.timeit(5)  # warm up; CUDA graphs are recorded
    count = max(1, round(seconds / max(1e-6, timers[0].timeit(2).mean)))
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            times[which].append(timers[which].timeit(count).mean)
    return times


def measure(network: Network, device: torch.device, tiny: bool) -> list[Row]:
    """Rows for a step, for `remember` and, on CUDA, for peak memory."""
    torch.manual_seed(0)
    old = network.batches(0, 2 if tiny else network.remembered, device)
    new = network.batches(1, NEW, device)
    plain_model = network.build().to(device)
    trainer = Trainer(network, plain_model, old)
    for _ in range(2 if tiny else 20):
        trainer.step()
    model = copy.deepcopy(plain_model)
    shield = network.shield(model)

    def forward() -> None:
        with torch.no_grad():
            for batch in old:
                network.feed(plain_model, batch)

    forward()
    passes = [seconds_of(forward, device) for _ in range(3)]
    remember = seconds_of(partial(shield.remember, old, feed=network.feed), device)
    plain, ours = Trainer(network, plain_model, new), Trainer(network, model, new)
    shield.guard(ours.optimizer)
    rounds, seconds = (3, 0.0) if tiny else (41, 0.05)
    times = side_by_side((plain.step, ours.step), device, rounds, seconds)
    rows = [_row("step", network, "s", median(times[0]), median(times[1]))]
    low, middle, high = quantiles([b / a for a, b in zip(*times)], n=4)
    rows[0] |= {"ratio": f"{middle:.4g}", "ratio_low": f"{low:.4g}", "ratio_high": f"{high:.4g}"}
    rows.append(_row("remember", network, "s", median(passes), remember))
    if device.type == "cuda":
        shield.detach()
        del shield, plain, ours, trainer, model, plain_model
        peaks = [peak_memory(network, device, old, new, guarded) for guarded in (False, True)]
        rows.append(_row("memory", network, "B", *peaks))
    return rows


def _row(what: str, network: Network, unit: str, plain: float, ours: float) -> Row:
    numbers = {"plain": f"{plain:.4g}", "ours": f"{ours:.4g}", "ratio": f"{ours / plain:.4g}"}
    return {"what": f"{what}-{network.name}", "setting": network.about, "unit": unit, **numbers}


def peak_memory(
    network: Network, device: torch.device, old: list[Batch], new: list[Batch], guarded: bool
) -> int:
    """The most bytes allocated in three steps, after three that warm up."""
    gc.collect()
    torch.cuda.empty_cache()
    model = network.build().to(device)
    trainer = Trainer(network, model, new)
    shield = network.shield(model) if guarded else None
    if shield is not None:
        shield.remember(old, feed=network.feed)
        shield.guard(trainer.optimizer)
    for turn in range(6):
        if turn == 3:
            torch.cuda.reset_peak_memory_stats()
        trainer.step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    if shield is not None:
        shield.detach()
    return peak


# --- the table ----------------------------------------------------------------------------


def tables(table: Table) -> str:
    """The last run of each setting; the ratio of `remember` is in forward passes."""
    newest = {(row["device"], row["what"], row["setting"]): row for row in table.rows}
    rows = []
    for (device, what, setting), row in newest.items():
        if row["ratio"]:
            cells = [_in_words(row["plain"], row["unit"]), _in_words(row["ours"], row["unit"])]
            rows.append([device, what, setting, *cells, f"{float(row['ratio']):.2f}"])
    return markdown(["device", "what", "setting", "plain", "shielded", "ratio"], rows)


def _in_words(value: str, unit: str) -> str:
    if not value:
        return "–"
    if unit == "B":
        return f"{float(value) / 2**20:.0f} MiB"
    return f"{1000 * float(value):.3g} ms" if unit == "s" else f"{value} {unit}"


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__, "results/cost.csv")
    choices(parser, "--networks", NAMES)
    parser.add_argument("--run", default="", help="name for the table (default: the commit)")
    asked = parser.parse_args(arguments)
    table = Table(asked.out, KEY)
    if asked.table:
        print(tables(table))
        return 0
    device = find_device(asked.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    where = {**environment(device), "threads": torch.get_num_threads()}
    large = device.type == "cuda" and not asked.tiny
    networks = [
        n for n in plain_networks(asked.tiny) if n.name != "layer-8b" or large or asked.tiny
    ]
    if importlib.util.find_spec("transformers") is None:
        say("gpt2, resnet18, vit and mini-lm are left out: pip install transformers")
    elif large:
        networks += transformers_networks()
    networks = [network for network in networks if network.name in asked.networks]
    run = asked.run or where["commit"]
    for network in networks:
        if {"run": run, "what": f"step-{network.name}", "setting": network.about} in table:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # small layers are soon full
            measured = measure(network, device, asked.tiny)
        for row in reversed(measured):  # the step last: a run is done when its step is there
            table.add({"run": run, **row, **where})
        say(f"{network.about}: " + ", ".join(f"{r['what']} {r['ratio']}" for r in measured))
    print(tables(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
