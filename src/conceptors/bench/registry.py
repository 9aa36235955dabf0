"""All benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conceptors.bench.body import body
from conceptors.bench.cifar import cifar
from conceptors.bench.family import family
from conceptors.bench.growth import growth, tasks
from conceptors.bench.readout import readout
from conceptors.bench.recipes import Recipe, cnn, gpt2, minilm, resnet18, vit
from conceptors.bench.regularization import regularization
from conceptors.bench.remember import remember_minilm, remember_rows
from conceptors.bench.row import Benchmark, Row, Size
from conceptors.bench.seeds import permuted, seeds
from conceptors.bench.steps import layers_8b, memory_gpt2, mlps, step_rows, vits
from conceptors.bench.untuned import untuned

Make = Callable[[Size, torch.device], Recipe]


def _step(name: str, about: str, make: Make, *devices: str) -> Benchmark:
    return _steps(name, about, lambda size, device: [make(size, device)], *devices)


def _steps(
    name: str, about: str, variants: Callable[[Size, torch.device], list[Recipe]], *devices: str
) -> Benchmark:
    """Shielded against plain steps of a network in one or several variants."""

    def run(size: Size, device: torch.device) -> list[Row]:
        return step_rows(name, variants(size, device))

    return Benchmark(name, f"a shielded step of {about}", run, devices or ("cpu", "cuda"))


def _remember(name: str, about: str, make: Make, most: int) -> Benchmark:
    """Remembering a task, of so many batches at full size on a GPU."""

    def run(size: Size, device: torch.device) -> list[Row]:
        return remember_rows(name, make(size, device), most)

    return Benchmark(name, f"remembering a task with {about}", run)


_ALL = [
    _steps("step-mlp", "784-800-10 against a plain one", mlps, "cpu"),
    _step("step-cnn", "a small CNN with AdamW", cnn, "cpu"),
    _step("step-resnet18", "ResNet-18", resnet18),
    _step("step-gpt2", "GPT-2 small", gpt2),
    _steps("step-vit", "ViT-S/16", vits),
    _step("step-minilm", "an encoder like MiniLM", minilm),
    _steps("layer-8b", "a Linear layer 4096 -> 14336", layers_8b),
    Benchmark("memory-gpt2", "peak memory of shielded training of GPT-2 small", memory_gpt2),
    _remember("remember-resnet18", "ResNet-18", resnet18, 196),
    _remember("remember-gpt2", "GPT-2 small", gpt2, 64),
    _remember("remember-vit", "ViT-S/16", vit, 100),
    Benchmark("remember-minilm", "remembering sentences with MiniLM", remember_minilm),
    Benchmark("readout", "learning and solving 20,000 features in closed form", readout),
    Benchmark("regularization", "a chosen λ against the best on a grid", regularization),
    Benchmark("body", "a sentence encoder under a shield, a readout after it", body),
    Benchmark("tasks", "a step after 100 tasks against one after 10", tasks),
    Benchmark("family", "time added to a step, ours against GPM, OWM and TRGP", family),
    Benchmark("seeds", "ten seeds at once against one at a time", seeds, ("cuda",)),
    Benchmark("permuted", "ten tasks of permuted MNIST, ten seeds", permuted, ("cuda",)),
    Benchmark("cifar", "split CIFAR-100, five seeds at once, CAB against SGD", cifar, ("cuda",)),
    Benchmark("untuned", "accuracy of Shield(model) with nothing chosen", untuned, keeps=True),
    Benchmark("growth", "time and memory over width, rank, batch, tasks", growth),
]

BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL}
