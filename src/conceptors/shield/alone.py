"""Work that must not overlap with itself in another thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock


class OneThread:
    """Refuses a second thread while the first is at work; the same thread may come again."""

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, RLock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"{self._what} is at work in another thread; wait for it, or use a lock of your own"
            )
        try:
            yield
        finally:
            self._lock.release()
