"""All benchmarks by name."""

from __future__ import annotations

from conceptors.bench.family import family
from conceptors.bench.growth import growth
from conceptors.bench.layer_8b import layer_8b
from conceptors.bench.memory import memory_gpt2
from conceptors.bench.remember import (
    remember_gpt2,
    remember_minilm,
    remember_resnet18,
    remember_vit,
)
from conceptors.bench.row import Benchmark
from conceptors.bench.seeds import permuted, seeds
from conceptors.bench.step_mlp import step_mlp
from conceptors.bench.step_models import (
    step_cnn,
    step_gpt2,
    step_minilm,
    step_resnet18,
    step_vit,
)
from conceptors.bench.tasks import tasks
from conceptors.bench.untuned import untuned

_ALL = [
    Benchmark("step-mlp", "a shielded step of 784-800-10 against a plain one", step_mlp, ("cpu",)),
    Benchmark("step-cnn", "a shielded step of a small CNN with AdamW", step_cnn, ("cpu",)),
    Benchmark("step-resnet18", "a shielded step of ResNet-18", step_resnet18),
    Benchmark("step-gpt2", "a shielded step of GPT-2 small", step_gpt2),
    Benchmark("step-vit", "a shielded step of ViT-S/16", step_vit),
    Benchmark("step-minilm", "a shielded step of an encoder like MiniLM", step_minilm),
    Benchmark("layer-8b", "a shielded step of a Linear layer 4096 -> 14336", layer_8b),
    Benchmark("memory-gpt2", "peak memory of shielded training of GPT-2 small", memory_gpt2),
    Benchmark("remember-resnet18", "remembering a task with ResNet-18", remember_resnet18),
    Benchmark("remember-gpt2", "remembering a task with GPT-2 small", remember_gpt2),
    Benchmark("remember-vit", "remembering a task with ViT-S/16", remember_vit),
    Benchmark("remember-minilm", "remembering sentences with MiniLM", remember_minilm),
    Benchmark("tasks", "a step after 100 tasks against one after 10", tasks),
    Benchmark("family", "time added to a step, ours against GPM, OWM and TRGP", family),
    Benchmark("seeds", "ten seeds at once against one at a time", seeds, ("cuda",)),
    Benchmark("permuted", "ten tasks of permuted MNIST, ten seeds", permuted, ("cuda",)),
    Benchmark("untuned", "accuracy of Shield(model) with nothing chosen", untuned, keeps=True),
    Benchmark("growth", "time and memory over width, rank, batch, tasks", growth),
]

BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL}
