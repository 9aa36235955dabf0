"""One interface for two trainers: two tasks, checkpoints after every epoch, clipped gradients."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Shield

DIM, CLASSES = 12, 3


class Net(nn.Module):
    """Linear, so that a task uses few directions; returns its loss where there are labels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(DIM, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.body(x))
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def task(number: int, count: int = 48) -> tuple[Tensor, Tensor]:
    """Samples `[count, DIM]` in four dimensions, which depend on the task, and labels."""
    generator = torch.Generator().manual_seed(number)
    inside = torch.randn(count, 4, generator=generator)
    basis = torch.randn(4, DIM, generator=generator) / 2
    return inside @ basis, inside[:, :CLASSES].argmax(1)


def rows(number: int, count: int = 48) -> list[dict[str, Tensor]]:
    """A task as data sets of transformers are: one mapping per sample."""
    return [{"x": x, "labels": label} for x, label in zip(*task(number, count))]


def outputs(model: nn.Module, number: int) -> Tensor:
    with torch.no_grad():
        return model(task(number)[0].to(next(model.parameters()))).float()  # type: ignore[no-any-return]


def accuracy(model: nn.Module, number: int) -> float:
    return float((outputs(model, number).argmax(1) == task(number)[1]).float().mean())


def everything(model: nn.Module, shield: Shield) -> dict[str, Tensor]:
    """All weights, and all that is remembered, by name."""
    weights = {f"weight {name}": p.detach().clone() for name, p in model.named_parameters()}
    return weights | {f"conceptor {name}": c.matrix() for name, c in shield.conceptors().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """To the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Recorded(Optimizer):
    """Plain SGD that records the norm of the gradients it receives."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.norms: list[float] = []
        self.interrupt = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.norms.append(float(nn.utils.get_total_norm([p.grad for p in moved])))
        if self.interrupt:
            raise KeyboardInterrupt
        for p in moved:
            p.sub_(0.1 * p.grad)
        return loss


class Run:
    """A new process: a network, its shield and its optimizer.

    `fit(number, epochs, resume)` trains on a task and remembers it, `checkpoint(number, epoch)` is
    where it saves after an epoch, and `clipping` the trainer's setting at the end.
    """

    needs = "accelerate"
    clipping = 0.0

    def __init__(self, folder: Path, clip: float = 0.0, make: Any = None, **options: Any) -> None:
        self.folder, self.clip, self.net = folder, clip, Net()
        self.optimizer = (make or partial(AdamW, lr=1e-2))(self.net.parameters())
        self.prepare(options)

    def prepare(self, options: dict[str, Any]) -> None:
        self.shield = Shield(self.net, **options)

    def loader(self, number: int) -> DataLoader[Any]:
        return DataLoader(TensorDataset(*task(number)), batch_size=8)


class Transformers(Run):
    needs = "transformers"
    sample: Any = None

    def checkpoint(self, number: int, epoch: int) -> Path:
        return self.folder / str(number) / f"checkpoint-{6 * epoch}"

    def fit(self, number: int, epochs: int = 10, resume: Path | None = None, **more: Any) -> Any:
        import transformers

        from conceptors.integrations.transformers import ShieldCallback

        options: dict[str, Any] = {"per_device_train_batch_size": 8, "num_train_epochs": epochs}
        options |= {
            "use_cpu": True,
            "max_grad_norm": self.clip,
            "save_strategy": "epoch",
            "report_to": [],
        }
        options |= {"lr_scheduler_type": "constant", "disable_tqdm": True, **more}
        arguments = transformers.TrainingArguments(str(self.folder / str(number)), **options)
        data: Any = {"train_dataset": rows(number), "eval_dataset": rows(number)}
        callback, optimizers = (
            ShieldCallback(self.shield, sample=self.sample),
            (self.optimizer, None),
        )
        trainer = transformers.Trainer(
            self.net, arguments, callbacks=[callback], optimizers=optimizers, **data
        )
        try:
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
        finally:
            self.clipping = arguments.max_grad_norm
        return trainer


class Lightning(Run):
    needs = "lightning"

    def prepare(self, options: dict[str, Any]) -> None:
        from lightning.pytorch import LightningModule

        optimizer, net = self.optimizer, self.net

        class Module(LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: Any) -> Any:
                return self.net(x)

            def training_step(self, batch: Any, index: int) -> Any:
                return self.net(*batch)["loss"]

            def configure_optimizers(self) -> Any:
                return optimizer

        self.model = Module()
        self.shield = Shield(self.model, **options)

    def checkpoint(self, number: int, epoch: int) -> Path:
        return self.folder / str(number) / f"epoch={epoch - 1}.ckpt"

    def fit(self, number: int, epochs: int = 10, resume: Path | None = None, **more: Any) -> Any:
        import lightning.pytorch as lightning

        from conceptors.integrations.lightning import ShieldCallback

        folder = self.folder / str(number)
        saving = lightning.callbacks.ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
        options = {"max_epochs": epochs, "gradient_clip_val": self.clip or None, "devices": 1}
        options |= {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        callbacks = [ShieldCallback(self.shield), saving]
        trainer = lightning.Trainer(accelerator="cpu", callbacks=callbacks, **options)
        trainer.fit(self.model, self.loader(number), ckpt_path=resume)
        self.clipping = trainer.gradient_clip_val
        return trainer


RUNS: list[Any] = [Transformers, Lightning]
