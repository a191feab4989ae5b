"""Between threads: a lock, and work that several of them want.

Whatever the loop decides needs neither. Threads that wait for an object store share a cache, and they are many.
"""

from __future__ import annotations

import threading  # noqa: TID251 - this file is the runtime's
from collections.abc import Callable, Hashable

Lock = threading.Lock  # held for a moment: the loop may take it too


def pause(seconds: float) -> None:
    """Blocks the calling thread. Never on the loop."""
    threading.Event().wait(seconds)


class SingleFlight:
    """Of several threads that want the same piece of work, one does it and the others wait for it. Never on the loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, threading.Event] = {}

    def do(self, key: Hashable, work: Callable[[], object], timeout_s: float) -> None:
        """Do `work` unless another thread is at the work of this `key`; if so, wait until that ends or `timeout_s` is over. Its
        exceptions are raised here, and not in the threads that wait."""
        with self._lock:
            other = self._under_way.get(key)
            if other is None:
                ended = self._under_way[key] = threading.Event()
        if other is not None:
            other.wait(timeout_s)
            return
        try:
            work()
        finally:
            with self._lock:
                del self._under_way[key]
            ended.set()

    def is_under_way(self, key: Hashable) -> bool:
        """Whether a thread is at the work of this `key`."""
        return key in self._under_way
