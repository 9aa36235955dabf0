"""Signed safetensors files with wrong content: ValueError and nothing else, nothing changed."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from conceptors import Conceptor, Shield
from conceptors._internal import storage


def parts(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a file, without its checksum."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    del header["sha256"]
    return load(data), header


def sign(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    path.write_bytes(save(plain, {**header, "sha256": storage.digest(plain, header)}))


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data(seed: int) -> Tensor:
    torch.manual_seed(seed)
    return (torch.randn(20, 2) @ torch.randn(2, 6)).double()


def step(model: Any, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    (model(x) - 1).square().mean().backward()
    optimizer.step()


def shielded(path: Path, **options: Any) -> None:
    """A shield in the middle of its third task, in a file."""
    model = network()
    shield = Shield(model, warn_at_quota=1.0, keep_tasks=True, **options)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1))
    for seed in range(2):
        step(model, optimizer, data(seed))
        shield.remember(data(seed))
    step(model, optimizer, data(2))
    shield.save(path)


def conceptor(path: Path) -> None:
    Conceptor.from_states(torch.randn(20, 5, dtype=torch.float64), 2.0).save(path)


def use_shield(path: Path) -> None:
    """Load a file, and go on with what it held."""
    model = network()
    shield = Shield(model, warn_at_quota=1.0, keep_tasks=True)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        shield.load(path)
    except ValueError:
        assert shield.n_tasks == 0
        assert set(shield.quota().values()) <= {0.0}
        raise
    step(model, optimizer, data(2))
    shield.remember(data(2))
    shield.quota()
    shield.explain()
    shield.forget(0)


def use_conceptor(path: Path) -> None:
    Conceptor.load(path).adapt(2.0).matrix()


MADE: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "conceptor": (conceptor, use_conceptor),
    "auto": (shielded, use_shield),
    "sketch": (lambda path: shielded(path, aperture=3.0, dense_limit=4, rank=2), use_shield),
}

WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda t: t * math.nan,
    "infinite": lambda t: t + math.inf,
    "negative": lambda t: -t - 1,
    "huge": lambda t: t * 1e300 + 1e308,
    "integers": lambda t: t.long(),
    "truth": lambda t: t.bool(),
    "complex": lambda t: t.to(torch.complex64),
    "half": lambda t: t.half(),
    "single": lambda t: t.float(),
    "bytes": lambda t: t.to(torch.uint8),
    "flat": lambda t: t.flatten(),
    "more axes": lambda t: t[None, None].clone(),
    "number": lambda t: torch.tensor(1.0, dtype=torch.float64),
    "nothing": lambda t: torch.zeros(0, dtype=torch.float64),
    "hollow": lambda t: torch.zeros(*t.shape, 0, dtype=torch.float64),
    "turned": lambda t: t.flip(-1) if t.ndim else t,
    "wider": lambda t: torch.cat([t, t], -1) if t.ndim else t,
    "longer": lambda t: torch.cat([t, t], 0) if t.ndim else t,
}

WORDS = ["", "x", "null", "true", "-1", "1.5", '"1"', "[]", "{}", "NaN", "1e400", "-1e400"]
WORDS += ["1" + "0" * 400, "1" + "0" * 5000, "[" * 100_000, '{"a":' * 100_000, '"\ud800"', "9" * 9]


def attempt(use: Callable[[Path], None], path: Path, what: str) -> None:
    """Accepted and usable, or ValueError naming the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            use(path)
        except ValueError as error:
            huge_but_finite = "training diverged" in str(error)
            if str(path) not in str(error) and not huge_but_finite:
                pytest.fail(f"{what}: the message does not name the file: {error}")
            if len(str(error)) > 1500:
                pytest.fail(f"{what}: a message of {len(str(error))} characters")
        except Exception as error:
            pytest.fail(f"{what}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("kind", MADE)
def test_wrong_tensors(kind: str, tmp_path: Path) -> None:
    make, use = MADE[kind]
    path = tmp_path / "good.safetensors"
    make(path)
    tensors, header = parts(path)
    for name, tensor in tensors.items():
        for wrong, change in WRONG.items():
            sign(path, {**tensors, name: change(tensor)}, header)
            attempt(use, path, f"{name} {wrong}")
        sign(path, {k: v for k, v in tensors.items() if k != name}, header)
        attempt(use, path, f"without {name}")


@pytest.mark.parametrize("kind", MADE)
def test_wrong_headers(kind: str, tmp_path: Path) -> None:
    make, use = MADE[kind]
    path = tmp_path / "good.safetensors"
    make(path)
    tensors, header = parts(path)
    for name in header:
        for word in WORDS:
            text = word.encode("utf-8", "replace").decode()
            sign(path, tensors, {**header, name: text})
            attempt(use, path, f"{name} = {text[:20]}")
        sign(path, tensors, {k: v for k, v in header.items() if k != name})
        attempt(use, path, f"without {name}")
    sign(path, {}, header)
    attempt(use, path, "no tensors")


@pytest.mark.parametrize("kind", ["auto", "sketch"])
@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "claimed", "claimed/", "claimed//", "claimed/0", "claimed//odds_matrix"),
        *("task0", "task0/0", "task1/0/odds_matrix", "task99999999999/0/odds", "task-1/0/odds"),
        *("task²/0/odds", "task٣/0/odds", "anchors", "anchors/0", "notes/0/x/value"),
        *("stiffness/0/value", "claimed/0/unknown", "other/0/value", "claimed/0/rest"),
    ],
)
def test_wrong_names(kind: str, name: str, tmp_path: Path) -> None:
    make, use = MADE[kind]
    path = tmp_path / "good.safetensors"
    make(path)
    tensors, header = parts(path)
    for tensor in (torch.zeros(1, 7, 7).double(), torch.tensor(0.5), torch.ones(2)):
        sign(path, {**tensors, name: tensor}, header)
        attempt(use, path, name)


def test_many_tasks_are_not_made_up(tmp_path: Path) -> None:
    """A header of a few bytes must not fill the memory."""
    path = tmp_path / "good.safetensors"
    shielded(path)
    tensors, header = parts(path)
    sign(path, tensors, {**header, "tasks": "1000000000"})
    with pytest.raises(ValueError, match="tasks"):
        use_shield(path)


def test_a_forgery_that_changes_nothing_is_read(tmp_path: Path) -> None:
    """The tests above fail for the reason they name, not for the way they are made."""
    path = tmp_path / "good.safetensors"
    for make, use in MADE.values():
        make(path)
        sign(path, *parts(path))
        use(path)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """A link where the file should be is replaced; what it leads to stays as it was."""
    victim, path = tmp_path / "victim", tmp_path / "c.safetensors"
    victim.write_text("mine")
    path.symlink_to(victim)
    conceptor(path)
    assert victim.read_text() == "mine"
    assert not os.path.islink(path)
    use_conceptor(path)
