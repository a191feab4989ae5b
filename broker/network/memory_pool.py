"""Bounds the memory of unfinished requests, over all connections.

`queued.max.request.bytes` as in Kafka: a connection reads more of a frame only when the whole frame has been granted. A frame
of any size is granted while less than the limit is held, so the largest request gets through too. Connections without a
grant stop reading, and get grants in the order in which they asked; their bytes stay in the sockets. A granted frame can
always be finished, so there is no deadlock.

A connection may keep its buffer between large frames, because a new one costs as much as reading does; the total of these
buffers is bounded too.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

KEPT_BYTES_MAX: Final = 32 * 1024 * 1024


class Holder(Protocol):
    """A connection."""

    def feed(self) -> None:
        """Memory may be available again: call `grant` once more."""
        ...

    def drop_idle_buffer(self) -> None:
        """Release the buffer if nothing is in it."""
        ...


class MemoryPool:
    """Grants of one broker. `limit` in bytes; -1 for none."""

    def __init__(self, limit: int) -> None:
        self.limited = limit >= 0
        self._limit = limit
        self.granted = 0
        self._waiting: deque[Holder] = deque()
        self._keepers: dict[Holder, int] = {}  # the bytes of each empty buffer that is kept; oldest first
        self._kept = 0

    def grant(self, size: int) -> bool:
        """Whether `size` more bytes may be held, until `give_back`."""
        if self.granted >= self._limit:
            return False
        self.granted += size
        return True

    def wait(self, holder: Holder) -> None:
        """Call `holder.feed()` when memory is available again."""
        self._waiting.append(holder)

    def give_back(self, size: int) -> None:
        self.granted -= size
        while self._waiting and self.granted < self._limit:
            self._waiting.popleft().feed()

    def keep(self, holder: Holder, size: int) -> None:
        """Record that `holder` keeps an empty buffer; the oldest kept buffers are dropped to stay below the limit."""
        self._forget(holder)
        self._keepers[holder] = size
        self._kept += size
        while self._kept > KEPT_BYTES_MAX:
            oldest = next(iter(self._keepers))
            self._forget(oldest)
            oldest.drop_idle_buffer()

    def leave(self, holder: Holder, granted: int) -> None:
        """Forget a connection that has ended."""
        self._forget(holder)
        if holder in self._waiting:
            self._waiting.remove(holder)
        if granted:
            self.give_back(granted)

    def _forget(self, holder: Holder) -> None:
        self._kept -= self._keepers.pop(holder, 0)
