"""Two tasks with transformers' Trainer: one callback protects the first.

A small BERT with random weights learns to classify sentences by their words. Each task has its own
words and two labels; one head has all four. Settings make forgetting visible: this is no benchmark.
Run with: python examples/transformers_trainer.py
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from conceptors import Shield
from conceptors.integrations.transformers import ShieldCallback

torch.set_num_threads(1)  # fastest for such a small network


def sentences(task: int, count: int, seed: int) -> list[dict[str, Any]]:
    """Draw sentences of seven words; each label has a vocabulary of 20."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2 * task, 2 * task + 2, (count,), generator=generator)
    words = torch.randint(20, (count, 7), generator=generator) + 20 * labels[:, None]
    return [{"input_ids": w, "labels": label} for w, label in zip(words, labels)]


def learn(protect: bool, folder: str) -> list[float]:
    torch.manual_seed(0)
    size = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=80, intermediate_size=128, num_labels=4, **size)
    model = BertForSequenceClassification(config)
    callbacks = [ShieldCallback(Shield(model))] if protect else []
    for task in range(2):
        arguments = TrainingArguments(
            f"{folder}/{task}",  # each task needs its own folder for checkpoints
            num_train_epochs=8,
            per_device_train_batch_size=16,
            learning_rate=2e-3,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="epoch",
            save_total_limit=1,
        )
        data = sentences(task, 320, seed=task)
        # train(resume_from_checkpoint=True) would restore weights, optimizer and shield
        Trainer(model, arguments, train_dataset=data, callbacks=callbacks).train()
    model.eval()
    accuracies = []
    for task in range(2):
        test = sentences(task, 300, seed=10 + task)
        with torch.no_grad():
            predicted = model(torch.stack([row["input_ids"] for row in test])).logits.argmax(1)
        is_correct = predicted == torch.stack([row["labels"] for row in test])
        accuracies.append(100 * float(is_correct.float().mean()))
    return accuracies


results = {}
for name, protect in (("without a shield", False), ("with a shield", True)):
    with TemporaryDirectory() as folder:
        results[name] = learn(protect, folder)
print("test accuracy in % after both tasks   first task  second task")
for name, accuracies in results.items():
    print(f"{name:36s}" + "".join(f"{accuracy:13.1f}" for accuracy in accuracies))
