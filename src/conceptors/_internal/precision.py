"""Set the precision of products of float32 matrices temporarily."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any, Literal

import torch
from torch import Tensor

_ONE_AT_A_TIME = RLock()  # the settings are process-wide


@contextmanager
def exactly(*, gradients: bool = False) -> Iterator[None]:
    """Compute in full precision inside, without autocast and TF32; restore settings on exit.

    `gradients`: record gradients as outside; by default none are recorded.
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
def tensor_cores(*, cpu: bool = False) -> Iterator[None]:
    """Round the factors of float32 matrix products to TF32 inside, on a GPU.

    `cpu`: round to bfloat16 on a CPU. Without units for that, it uses a faster kernel of float32.
    """
    with _ONE_AT_A_TIME, _precision(_products(), ["tf32", "bf16" if cpu else "ieee"]):
        yield


@contextmanager
def passes_in(precision: Literal["exact", "tf32"]) -> Iterator[None]:
    """Set the float32 precision of forward and backward passes inside (on a GPU).

    From torch 2.9 on, this includes convolutions. Only one thread may use it: it takes no lock,
    because backward passes run in other threads, where `exactly` takes the lock.
    """
    cudnn: Any = torch.backends.cudnn
    convolutions = [cudnn.conv, cudnn.rnn] if len(_products()) > 1 else []
    wanted = "tf32" if precision == "tf32" else "ieee"
    with _precision([_products()[0], *convolutions], [wanted] * 3):
        yield


def full(x: Tensor) -> Tensor:
    """Convert half precision to float32, in which projections run; return others unchanged."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@contextmanager
def _precision(backends: list[Any], wanted: list[str]) -> Iterator[None]:
    previous = [backend.fp32_precision for backend in backends]
    try:
        for backend, value in zip(backends, wanted):
            backend.fp32_precision = value
        yield
    finally:
        for backend, value in zip(backends, previous):
            backend.fp32_precision = value


def _products() -> list[Any]:
    """Return the settings of matrix products: GPU and CPU, or both in one before torch 2.9."""
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
