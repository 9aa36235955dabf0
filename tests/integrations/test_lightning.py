"""The shield in Lightning's Trainer: what it protects, and what a checkpoint holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Shield, UnprotectedWarning
from integrations.common import Net, accuracy, drift, everything, outputs, same, task

lightning: Any = pytest.importorskip("lightning.pytorch")

from conceptors.integrations.lightning import ShieldCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*num_workers"),
    pytest.mark.filterwarnings("ignore:.*(treespec|LeafSpec)"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:.*already configured with model summary"),
]


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, net: nn.Module, momentum: float = 0.0) -> None:
        super().__init__()
        self.net = net
        self.momentum = momentum

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, labels = batch
        return nn.functional.cross_entropy(self(x), labels)

    def configure_optimizers(self) -> Any:
        if self.momentum:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=self.momentum)
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def loader(number: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*task(number)), batch_size=8)


def trainer(
    shield: Shield, folder: Path, epochs: int = 10, *, keep: bool = False, **more: Any
) -> Any:
    """With `keep` a checkpoint of every epoch stays in the folder."""
    callbacks: list[Any] = [ShieldCallback(shield)]
    if keep:
        callbacks.append(lightning.callbacks.ModelCheckpoint(folder, "{epoch}", save_top_k=-1))
    return lightning.Trainer(
        max_epochs=epochs,
        callbacks=callbacks,
        enable_checkpointing=keep,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **more,
    )


def test_two_tasks(tmp_path: Path) -> None:
    module = Module(Net())
    shield = Shield(module, 1e4, hard=True)
    trainer(shield, tmp_path).fit(module, loader(1))
    assert shield.n_tasks == 1
    before = outputs(module.net, 1)
    assert accuracy(module.net, 1) > 0.9
    trainer(shield, tmp_path).fit(module, loader(2))
    assert shield.n_tasks == 2
    assert drift(before, outputs(module.net, 1)) < 1e-5
    assert accuracy(module.net, 2) > 0.8


SHIELDS: dict[str, tuple[dict[str, Any], float]] = {
    "auto": ({}, 0.0),
    "decay": ({"aperture": 3.0, "increment_decay": 0.01}, 0.9),
}


@pytest.mark.parametrize("kind", SHIELDS)
def test_a_resumed_fit_is_the_fit_that_was_not_interrupted(tmp_path: Path, kind: str) -> None:
    options, momentum = SHIELDS[kind]
    module = Module(Net(), momentum)
    shield = Shield(module, **options)
    trainer(shield, tmp_path).fit(module, loader(1))
    trainer(shield, tmp_path, 4, keep=True).fit(module, loader(2))
    wanted = everything(module.net, shield)
    again = Module(Net(), momentum)  # as a new process makes it
    second = Shield(again, **options)
    trainer(second, tmp_path, 4, keep=True).fit(
        again, loader(2), ckpt_path=tmp_path / "epoch=1.ckpt"
    )
    assert second.n_tasks == 2
    assert same(everything(again.net, second), wanted)


def test_going_back_to_an_earlier_task_is_said(tmp_path: Path) -> None:
    module = Module(Net())
    shield = Shield(module)
    trainer(shield, tmp_path, 2, keep=True).fit(module, loader(1))
    run = trainer(shield, tmp_path, 3, keep=True)
    with pytest.warns(UnprotectedWarning, match="had remembered 1 tasks.* contains only 0 of them"):
        run.fit(module, loader(2), ckpt_path=tmp_path / "epoch=0.ckpt")
