"""body: a sentence encoder that learns domain after domain under a shield, and a readout after it.

CLINC150, one 150-way output, no stored sentences, the domain is not known when testing. For every
domain the encoder learns with a head of the domain's own, which is then thrown away; the shield
remembers the domain; the readout learns it in closed form, from all hidden layers.
"""

from __future__ import annotations

import multiprocessing
import statistics
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors import RandomFeatures, Readout, Shield
from conceptors.bench.row import Row, Size, UnfitError, pick
from conceptors.experiments.scenarios.data.cache import DataUnavailableError
from conceptors.experiments.scenarios.data.sentences import (
    encoder,
    encoder_folder,
    mean_state,
    sentences,
    token_ids,
)

FROZEN, SHIELDED = 96.2, 96.8  # targets, percent
KINDS = {"frozen": "frozen encoder", "plain": "unshielded encoder", "shield": "shielded encoder"}
_RATE, _HEAD_RATE, _EPOCHS, _BATCH, _LIFT = 3e-5, 1e-2, 5, 32, 10_000  # chosen on validation data


class Part(NamedTuple):
    """Token ids `[n, t]` and labels `[n]`."""

    ids: Tensor
    labels: Tensor


class Body(nn.Module):
    """Token ids to means over tokens of all hidden layers, each of length 1 `[n, layers · d]`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor) -> Tensor:
        return torch.cat([functional.normalize(x, dim=1) for x in self.means(ids)], 1)

    def means(self, ids: Tensor) -> list[Tensor]:
        ids = ids[:, : int((ids != 0).sum(1).max())]
        found = self.network(
            input_ids=ids, attention_mask=(ids != 0).long(), output_hidden_states=True
        )
        return [mean_state(states, ids) for states in found.hidden_states]


def body(size: Size, device: torch.device) -> list[Row]:
    """One row for a frozen, an unshielded and a shielded encoder."""
    try:
        encoder_folder(), sentences()  # what cannot be fetched first
    except DataUnavailableError as error:
        raise UnfitError(str(error)) from None
    seeds = list(range(pick(size, 1, 1, 5)))
    longest_first = reversed(KINDS)
    cells = [(kind, seed, size, str(device)) for kind in longest_first for seed in seeds]
    if device.type == "cuda":
        with multiprocessing.get_context("spawn").Pool(min(12, len(cells))) as pool:
            found = dict(zip(cells, pool.map(run, cells, chunksize=1)))
    else:
        found = {cell: run(cell) for cell in cells}
    rows = []
    for kind, about in KINDS.items():
        runs = [found[kind, seed, size, str(device)] for seed in seeds]
        test = [one["test"] for one in runs]
        target = {"frozen": FROZEN, "shield": SHIELDED}.get(kind)
        rows.append(
            Row(
                "body",
                f"CLINC150, ten domains, MiniLM, {about}, readout of all layers, lift {_LIFT:,}",
                unit="%",
                ours=statistics.mean(test),
                target=None if size == "tiny" else target,
                more=True,
                notes={
                    "std": statistics.stdev(test) if len(test) > 1 else 0.0,
                    "seeds": seeds,
                    "runs": runs,
                },
            )
        )
    return rows


def run(cell: tuple[str, int, Size, str]) -> dict[str, Any]:
    """Accuracy of one seed in percent, on validation and test sentences."""
    kind, seed, size, device = cell
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # they run side by side
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return learn(kind, seed, size, torch.device(device))
    finally:
        torch.set_num_threads(threads)


def learn(kind: str, seed: int, size: Size, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(seed)
    parts, domains = _tokens(size, device)
    network = Body(encoder(encoder_folder())).to(device)
    width = network(parts["train"].ids[:2]).shape[1]
    lift = RandomFeatures(width, pick(size, 500, _LIFT, _LIFT), "relu", shape=0.0, seed=seed)
    readout = Readout(width, lift=lift).to(device)
    shield = Shield(network, warn_at_quota=1.0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE)
    if kind == "shield":
        shield.guard(optimizer)
    for labels in domains:
        part = parts["train"]
        own = torch.isin(part.labels, labels)
        ids, y = part.ids[own], part.labels[own]
        if kind != "frozen":
            _train(network, optimizer, ids, torch.searchsorted(labels, y), size)
        if kind == "shield":
            shield.remember(ids.split(256))
        batches = list(zip(ids.split(256), y.split(256)))
        readout.learn_from(network, batches, shield=shield if kind == "shield" else None)
    found: dict[str, Any] = {
        name: _accuracy(network, readout, parts[name]) for name in ("val", "test")
    }
    found["regularization"], found["quota"] = readout.regularization, readout.quota
    if kind == "shield":
        found["out of date"] = readout.out_of_date(shield)
    return found


def _tokens(size: Size, device: torch.device) -> tuple[dict[str, Part], list[Tensor]]:
    folder, data = encoder_folder(), sentences()
    every = pick(size, 20, 1, 1)
    parts = {
        name: Part(
            token_ids(texts[::every], folder).to(device),
            torch.tensor(labels[::every], device=device),
        )
        for name, (texts, labels) in data.parts.items()
    }
    return parts, [torch.tensor(sorted(own), device=device) for own in data.domains.values()]


def _train(
    network: Body, optimizer: torch.optim.Optimizer, ids: Tensor, y: Tensor, size: Size
) -> None:
    """One domain, with a head that is thrown away."""
    width = network.means(ids[:2])[-1].shape[1]
    head = nn.Linear(width, int(y.max()) + 1, device=ids.device)
    beside = torch.optim.AdamW(head.parameters(), lr=_HEAD_RATE)
    network.train()
    for _ in range(pick(size, 1, _EPOCHS, _EPOCHS)):
        for at in torch.randperm(len(ids), device=ids.device).split(_BATCH):
            optimizer.zero_grad()
            beside.zero_grad()
            functional.cross_entropy(head(network.means(ids[at])[-1]), y[at]).backward()
            optimizer.step()
            beside.step()
    network.eval()


@torch.no_grad()
def _accuracy(network: Body, readout: Readout, part: Part) -> float:
    network.eval()
    guess = torch.cat([readout.predict(network(ids)) for ids in part.ids.split(512)])
    return 100 * float((guess == part.labels).float().mean())
