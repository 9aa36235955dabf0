"""The precision of products of float32 matrices, set for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any, Literal

import torch
from torch import Tensor

_ONE_AT_A_TIME = RLock()  # these are settings of the whole process


@contextmanager
def exactly(*, gradients: bool = False) -> Iterator[None]:
    """Compute in full precision inside: no autocast, no TF32; the user's settings come back.

    `gradients`: whether they are recorded as outside, instead of not at all.
    """
    with ExitStack() as settings:
        if not gradients:
            settings.enter_context(torch.no_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                settings.enter_context(torch.autocast(kind, enabled=False))
        if any(backend.fp32_precision not in ("ieee", "none") for backend in _products()):
            settings.enter_context(_ONE_AT_A_TIME)
            settings.enter_context(_precision(_products(), ["ieee", "ieee"]))
        yield


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Products of float32 matrices round their factors to TF32 inside (on a GPU only)."""
    with _ONE_AT_A_TIME, _precision(_products(), ["tf32", "ieee"]):
        yield


@contextmanager
def passes_in(precision: Literal["exact", "tf32"]) -> Iterator[None]:
    """Forward and backward passes compute float32 like this inside (on a GPU).

    Convolutions too, from torch 2.9 on. For programs that have the process to themselves: no lock
    is held, as backward passes run in threads of their own, where `exactly` takes it.
    """
    cudnn: Any = torch.backends.cudnn
    convolutions = [cudnn.conv, cudnn.rnn] if len(_products()) > 1 else []
    wanted = "tf32" if precision == "tf32" else "ieee"
    with _precision([_products()[0], *convolutions], [wanted] * 3):
        yield


def full(x: Tensor) -> Tensor:
    """Half precision as float32, in which it is projected; anything else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@contextmanager
def _precision(backends: list[Any], wanted: list[str]) -> Iterator[None]:
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend, value in zip(backends, wanted):
            backend.fp32_precision = value
        yield
    finally:
        for backend, value in zip(backends, before):
            backend.fp32_precision = value


def _products() -> list[Any]:
    """The settings of matrix products: on a GPU and on the CPU, or of both (before torch 2.9)."""
    cuda, cpu = torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)
    return [cuda, cpu] if hasattr(cuda, "fp32_precision") else [_OldProducts()]


class _OldProducts:
    @property
    def fp32_precision(self) -> str:
        name = torch.get_float32_matmul_precision()
        return "ieee" if name == "highest" else name

    @fp32_precision.setter
    def fp32_precision(self, name: str) -> None:
        torch.set_float32_matmul_precision({"ieee": "highest", "tf32": "high"}.get(name, name))
