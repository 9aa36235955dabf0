"""Work that must not overlap with itself in another thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, RLock


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


class SharedSetting:
    """Settings of the whole process, changed while at least one thread needs it."""

    def __init__(self, enter: Callable[[ExitStack], None]) -> None:
        """`enter` makes the changes, and puts what undoes them on the stack."""
        self._enter, self._lock = enter, Lock()
        self._users, self._stack = 0, ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._users:
                with ExitStack() as stack:
                    self._enter(stack)
                    self._stack = stack.pop_all()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._stack.close()
