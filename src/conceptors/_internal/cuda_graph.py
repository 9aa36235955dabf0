"""Record work on a GPU once as a CUDA graph and replay it without launching kernels."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import cycle

import torch

from conceptors._internal.precision import exactly

_WARM_UP = 3
_BRANCHES = 4  # small kernels that do not depend on each other share the GPU


class CudaGraph:
    """Pieces of work that may run in any order; the first calls run as usual.

    The memory that the work reads and writes must not move.
    """

    def __init__(
        self, *pieces: Callable[[], None], device: torch.device | None = None, exact: bool = True
    ) -> None:
        """`exact`: compute in full precision, whatever the user's settings."""
        self._pieces, self._device = pieces, device
        self._precision = partial(exactly, gradients=True) if exact else nullcontext
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0

    def __call__(self) -> None:
        with torch.cuda.device(self._device):
            if torch.cuda.is_current_stream_capturing():  # part of a larger recording
                self._run()
                return
            self._calls += 1
            if self._graph is None and self._calls > _WARM_UP:
                self._record()
            if self._graph is not None:
                self._graph.replay()
                return
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._run()
            torch.cuda.current_stream().wait_stream(side)

    def _run(self) -> None:
        with self._precision():
            for piece in self._pieces:
                piece()

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with self._precision(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            main = torch.cuda.current_stream()
            branches = [torch.cuda.Stream() for _ in self._pieces[1:_BRANCHES]]
            for branch in branches:
                branch.wait_stream(main)
            for piece, stream in zip(self._pieces, cycle([main, *branches])):
                with torch.cuda.stream(stream):
                    piece()
            for branch in branches:
                main.wait_stream(branch)
        self._graph = graph
