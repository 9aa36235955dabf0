"""Two tasks with one Trainer; run by torchrun, or alone with a batch as large as all of theirs.

python two_tasks_trainer.py FOLDER BATCH_SIZE: every process writes what it ends with to FOLDER.
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

folder, size = Path(sys.argv[1]), int(sys.argv[2])
rank = int(os.environ.get("RANK", "0"))
torch.set_num_threads(1)
shield = Shield(Net(), aperture=1e4, hard=True)
arguments = TrainingArguments(
    str(folder / "out"),
    per_device_train_batch_size=size,
    learning_rate=0.05,
    lr_scheduler_type="constant",
    optim="sgd",
    num_train_epochs=4,
    save_strategy="epoch",
    use_cpu=True,
    ddp_backend="gloo" if "RANK" in os.environ else None,
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
steps = len(rows(2)) // (size * int(os.environ.get("WORLD_SIZE", "1")))
trainer.train(resume_from_checkpoint=str(folder / "second" / f"checkpoint-{2 * steps}"))
torch.save(everything(again.model, again), folder / f"{rank}-resumed.pt")
