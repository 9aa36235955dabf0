"""One method with one seed: its accuracy on every domain, after every domain."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from conceptors.bench.pretrained.methods import Method, Settings
from conceptors.bench.pretrained.registry import METHODS
from conceptors.bench.pretrained.stream import Size, read

COLUMNS = ("one", "known")  # one head for all intents; the domain is known


class Cell(NamedTuple):
    """Scored on the sentences of `part`, after every domain or, without `stages`, the last one."""

    method: str
    seed: int
    settings: Settings
    part: str
    stages: bool
    size: Size
    device: str

    def key(self) -> dict[str, Any]:
        """What makes it the same run as another."""
        return {
            "method": self.method,
            "seed": self.seed,
            "settings": self.settings,
            "part": self.part,
            "size": list(self.size),
        }


def run(cell: Cell) -> dict[str, Any]:
    """Accuracies in percent: `one[i][j]` and `known[i][j]`, of domain j after domain i."""
    with quiet():
        torch.manual_seed(cell.seed)
        stream = read(cell.size, cell.device)
        start = time.perf_counter()
        method = METHODS[cell.method](stream, cell.settings, cell.seed, cell.device)
        last = stream.domains - 1
        found: dict[str, list[list[float]]] = {column: [] for column in COLUMNS}
        for domain in [last] if method.at_once else range(stream.domains):
            method.learn(domain)
            if cell.stages or domain == last:
                for column, row in zip(COLUMNS, accuracies(method, cell.part, domain)):
                    found[column].append(row)
        seconds = time.perf_counter() - start
        return {
            **cell.key(),
            **found,
            "stored": method.stored(),
            "seconds": round(seconds, 1),  # of runs side by side: for planning, not for comparison
        }


@torch.no_grad()
def accuracies(method: Method, part: str, seen: int) -> tuple[list[float], list[float]]:
    """Of all domains up to `seen`: with one head for their intents, and with the domain known."""
    method.model.eval()
    one, known = [], []
    stream = method.stream
    for domain in range(seen + 1):
        own, right_one, right_known = stream.parts[part][domain], 0, 0
        for at in own.lengths.argsort(stable=True).split(512):
            ids, labels = own.rows(at)
            scores = method.scores(ids)[:, : stream.first[seen + 1]]
            within = scores[:, stream.outputs(domain)].argmax(1) + stream.first[domain]
            right_one += int((scores.argmax(1) == labels).sum())
            right_known += int((within == labels).sum())
        one.append(round(100 * right_one / len(own), 4))
        known.append(round(100 * right_known / len(own), 4))
    return one, known


def final(rows: list[list[float]]) -> float:
    """Mean over domains after the last."""
    return sum(rows[-1]) / len(rows[-1])


def forgetting(rows: list[list[float]]) -> float | None:
    """Mean over domains but the last of what was lost since they were learned; None if unknown."""
    if len(rows) < 2 or len(rows) != len(rows[-1]):
        return None
    lost = [row[-1] - end for row, end in zip(rows[:-1], rows[-1])]
    return sum(lost) / len(lost)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """One thread, as many run side by side; TensorFloat32 on a GPU; no warnings of others."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
