"""Work that only one thread may do at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock


class OneThread:
    """Raise an error in a second thread while the first is at work; one thread may re-enter."""

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, RLock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"{self._what} is in use by another thread, and two threads would corrupt it; wait "
                f"for that thread, or use a lock"
            )
        try:
            yield
        finally:
            self._lock.release()
