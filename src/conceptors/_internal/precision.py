"""How exactly products of float32 matrices are computed, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from threading import RLock
from typing import Any, Literal

import torch
from torch import Tensor

_LOW_BITS = ~((1 << 13) - 1)  # TF32 keeps the first 10 of 23 bits of the mantissa


@contextmanager
def exactly(*, gradients: bool = False) -> Iterator[None]:
    """Full precision inside: no autocast, no TF32; the user's settings come back.

    `gradients`: whether they are recorded as outside, instead of not at all.
    """
    with ExitStack() as settings:
        if not gradients:
            settings.enter_context(torch.no_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                settings.enter_context(torch.autocast(kind, enabled=False))
        if not all(_is_plain(backend) for backend in _backends()):
            settings.enter_context(_float32_products("ieee"))
        yield


def tensor_cores() -> Any:
    """Products of float32 matrices round their factors to TF32 inside (on a GPU only)."""
    return _float32_products("tf32")


@contextmanager
def passes_in(precision: Literal["exact", "tf32"]) -> Iterator[None]:
    """Forward and backward passes compute float32 like this inside, convolutions too (on a GPU).

    For programs that have the process to themselves: no lock is held, as backward passes run in
    threads of their own, where `exactly` takes it.
    """
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    backends = [cuda.matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None)]
    if not all(_settable(backend) for backend in backends):  # before torch 2.9
        before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        cudnn.allow_tf32 = precision == "tf32"
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            cudnn.allow_tf32 = before[1]
        return
    kept = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        for backend, value in zip(backends, kept):
            backend.fp32_precision = value


_ONE_AT_A_TIME = RLock()  # these are settings of the whole process


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    with _ONE_AT_A_TIME:
        yield from _set_for_a_while(precision)


def _set_for_a_while(precision: str) -> Iterator[None]:
    backends = _backends()
    if not all(_settable(backend) for backend in backends):  # before torch 2.9
        before = torch.get_float32_matmul_precision()
        wanted = "highest" if precision == "ieee" else "high"
        try:
            if before != wanted:
                torch.set_float32_matmul_precision(wanted)
            yield
        finally:
            if before != wanted:
                torch.set_float32_matmul_precision(before)
        return
    kept = [backend.fp32_precision for backend in backends]
    try:
        backends[0].fp32_precision = precision
        backends[1].fp32_precision = "ieee"
        yield
    finally:
        for backend, value in zip(backends, kept):
            backend.fp32_precision = value


def _backends() -> list[Any]:
    libraries: list[Any] = [torch.backends.cuda, torch.backends.mkldnn]
    return [getattr(library, "matmul", None) for library in libraries]


def _is_plain(backend: Any) -> bool:
    """Whether float32 is float32 there already, which is the usual thing."""
    return _settable(backend) and backend.fp32_precision in ("ieee", "none")


def _settable(backend: Any) -> bool:
    try:
        return isinstance(backend.fp32_precision, str)
    except (AttributeError, RuntimeError):
        return False


def rounded(x: Tensor) -> Tensor:
    """x cut to numbers that TF32 holds exactly; the rest, x - rounded(x), has 13 bits."""
    return (x.view(torch.int32) & _LOW_BITS).view(torch.float32)


def split(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """x as a sum of numbers that TF32 holds (almost) exactly; half precision is one already."""
    if x.dtype != torch.float32:
        return x.float(), None
    high = rounded(x)
    return high, x - high


def split_tf32(x: Tensor) -> Tensor:
    """[high | low] with x = high + low, numbers that TF32 holds."""
    high = rounded(x)
    return torch.cat([high, x - high], -1)


def sharp_product(x: Tensor, factor: Tensor) -> Tensor:
    """x @ (high + low) for a factor [high | low], to about float32's precision.

    Three products of TF32 numbers: high high, high low and low high.
    """
    rank = factor.shape[-1] // 2
    high, low = split(x)
    with tensor_cores():
        both = high @ factor
        found = both[..., :rank] + both[..., rank:]
        if low is not None:
            found += low @ factor[..., :rank]
    return found


def split_bf16(x: Tensor) -> Tensor:
    """[high | middle | low] in bfloat16, with 24 bits together."""
    high = x.bfloat16()
    middle = (x - high.float()).bfloat16()
    low = (x - high.float() - middle.float()).bfloat16()
    return torch.cat([high, middle, low], -1)


@cache
def widens(device: torch.device) -> bool:
    """Whether products of bfloat16 matrices can come out in float32 (torch 2.8 and later)."""
    wide: Any = torch.mm
    x = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    try:
        return bool(wide(x, x, out_dtype=torch.float32).dtype == torch.float32)
    except (TypeError, RuntimeError):
        return False


def full(x: Tensor) -> Tensor:
    """Half precision as float32, in which it is projected; anything else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
