"""Two tasks with one Trainer; run by torchrun.

torchrun two_tasks_transformers.py FOLDER: every process writes what it ends with to FOLDER.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from conceptors import Shield
from conceptors.integrations.transformers import ShieldCallback
from integrations.common import Net, drift, everything, outputs, rows

folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
torch.set_num_threads(1)
shield = Shield(Net(), aperture=1e4, hard=True)
arguments = TrainingArguments(
    str(folder / "out"),
    per_device_train_batch_size=4,
    learning_rate=0.05,
    lr_scheduler_type="constant",
    optim="sgd",
    num_train_epochs=4,
    save_strategy="epoch",
    use_cpu=True,
    ddp_backend="gloo",
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(
    shield.model, arguments, train_dataset=rows(1), callbacks=[ShieldCallback(shield)]
)
trainer.train()
before = outputs(shield.model, 1)
trainer.train_dataset = rows(2)
arguments.output_dir = str(folder / "second")
trainer.train()
moved = drift(before, outputs(shield.model, 1))
torch.save((moved, everything(shield.model, shield)), folder / f"{rank}.pt")

# and from the checkpoint in the middle of the second task
again = Shield(Net(), aperture=1e4, hard=True)
trainer = Trainer(again.model, arguments, train_dataset=rows(2), callbacks=[ShieldCallback(again)])
trainer.train(resume_from_checkpoint=str(folder / "second" / "checkpoint-12"))
torch.save(everything(again.model, again), folder / f"{rank}-resumed.pt")
