"""Signed files of shields with wrong content: ValueError and nothing else, nothing changed."""

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from conceptors import Shield
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


def rows() -> Tensor:
    return (torch.randn(20, 2) @ torch.randn(2, 6)).double()


def use(path: Path) -> None:
    """Load a file into a shield that has remembered a task, and use its content."""
    shield = Shield(network(), keep_tasks=True).remember(rows())
    quota = shield.quota()
    try:
        shield.load(path)
    except ValueError:
        assert (shield.n_tasks, shield.quota()) == (1, quota)
        raise
    shield.remember(torch.randn(20, 6).double())
    shield.explain()


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda t: t * math.nan,
    "negative": lambda t: -t - 1,
    "huge": lambda t: t * 1e300 + 1e308,
    "truth": lambda t: t.bool(),
    "complex": lambda t: t.to(torch.complex64),
    "flat": lambda t: t.flatten(),
    "more axes": lambda t: t[None, None].clone(),
    "number": lambda t: torch.tensor(1.0, dtype=torch.float64),
    "nothing": lambda t: torch.zeros(0, dtype=torch.float64),
    "wider": lambda t: torch.cat([t, t], -1) if t.ndim else t,
}
REFUSED = ("NaN", "truth", "complex", "more axes", "number", "wider")  # in what is claimed
WORDS = ["", "null", "-1", "1.5", "[]", "NaN", "1e400", "1" + "0" * 5000, "[" * 100_000, "9" * 9]


def test_wrong_content_is_refused_or_usable(tmp_path: Path) -> None:
    path = tmp_path / "good.safetensors"
    shield = Shield(network(), keep_tasks=True)
    shield.remember(rows()).remember(rows()).save(path)
    tensors, header = parts(path)

    def attempt(what: str, tensors: dict[str, Tensor], header: dict[str, str]) -> str:
        sign(path, tensors, header)
        message = ""
        try:
            use(path)
        except ValueError as error:
            message = str(error)
        is_named = str(path) in message or "training diverged" in message
        assert not message or (is_named and len(message) < 1500), f"{what}: {message}"
        return message

    assert not attempt("a forgery that changes nothing", tensors, header)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, tensor in tensors.items():
            for wrong, change in WRONG.items():
                message = attempt(f"{name} {wrong}", {**tensors, name: change(tensor)}, header)
                is_excerpt = name.startswith("weights/")
                assert message or is_excerpt or wrong not in REFUSED, f"{name} {wrong}"
            attempt(f"no {name}", {k: v for k, v in tensors.items() if k != name}, header)
        for name in header:
            for word in WORDS:
                message = attempt(f"{name} = {word[:20]}", tensors, {**header, name: word})
                assert message or word in ("null", "[]"), f"{name} = {word[:20]}"
        for name in ("", "/", "claimed//0", "task99999999999/0/odds", "task²/0/odds", "other/0"):
            attempt(name, {**tensors, name: torch.ones(2)}, header)
