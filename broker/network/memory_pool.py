"""What connections hold of requests that have not arrived in full: bounded in sum.

`queued.max.request.bytes` as Kafka has it: a connection reads on into a frame only when the frame has been
granted its size, and any frame is granted it while less than the limit is held, so the largest request gets
through too. Who is not granted it stops reading, first come first served, and what it sends stays in the
sockets. A frame that was granted its size can always be finished; so nobody waits for somebody who waits.

A connection may keep its buffer between large frames, because getting a new one costs as much as reading does;
but only so many bytes are kept by all of them together.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

KEPT_BYTES_MAX: Final = 32 * 1024 * 1024


class Holder(Protocol):
    """A connection, as seen from here."""

    def feed(self) -> None:
        """There may be room again: ask once more."""
        ...

    def drop_idle_buffer(self) -> None:
        """Let the buffer go if nothing is in it."""
        ...


class MemoryPool:
    """`limit` in bytes; -1 for none."""

    def __init__(self, limit: int) -> None:
        self.limited = limit >= 0
        self._limit = limit
        self.granted = 0
        self._hungry: deque[Holder] = deque()
        self._keepers: dict[Holder, int] = {}  # who keeps an empty buffer of how many bytes; oldest first
        self._kept = 0

    def grant(self, size: int) -> bool:
        """Whether `size` more bytes may be held; to be given back."""
        if self.granted >= self._limit:
            return False
        self.granted += size
        return True

    def wait(self, holder: Holder) -> None:
        """`holder.feed()` is called when there is room again."""
        self._hungry.append(holder)

    def give_back(self, size: int) -> None:
        self.granted -= size
        while self._hungry and self.granted < self._limit:
            self._hungry.popleft().feed()

    def keep(self, holder: Holder, size: int) -> None:
        """`holder` keeps an empty buffer; others that have kept theirs for longer may lose them."""
        self._forget(holder)
        self._keepers[holder] = size
        self._kept += size
        while self._kept > KEPT_BYTES_MAX:
            oldest = next(iter(self._keepers))
            self._forget(oldest)
            oldest.drop_idle_buffer()

    def leave(self, holder: Holder, granted: int) -> None:
        """A connection ends."""
        self._forget(holder)
        if holder in self._hungry:
            self._hungry.remove(holder)
        if granted:
            self.give_back(granted)

    def _forget(self, holder: Holder) -> None:
        self._kept -= self._keepers.pop(holder, 0)
