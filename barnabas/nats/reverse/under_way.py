"""The messages of one partition that are published and not acknowledged, in the order of publishing."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 5.0  # how long a message may be without an acknowledgement
_NONE: Final = -1


class UnderWay:
    """By offset. False when there are none."""

    __slots__ = ("_sizes", "_watched", "_watched_since_s", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._sizes: dict[int, int] = {}  # offset -> bytes
        self._watched = _NONE  # the first one, and since when it is that
        self._watched_since_s = 0.0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, offset: int) -> bool:
        return offset in self._sizes

    @property
    def first(self) -> int:
        """-1 when there is none."""
        return next(iter(self._sizes), _NONE)

    def add(self, offset: int, size: int) -> None:
        self._sizes[offset] = size
        self.bytes += size

    def remove(self, offset: int) -> int:
        """It is acknowledged; its size."""
        size = self._sizes.pop(offset)
        self.bytes -= size
        return size

    def below(self, end_offset: int) -> list[int]:
        """Offsets are published in their order."""
        found: list[int] = []
        for offset in self._sizes:
            if offset >= end_offset:
                break
            found.append(offset)
        return found

    def clear(self) -> None:
        self._sizes.clear()
        self.bytes = 0

    def waits_too_long(self, now_s: float) -> bool:
        """Asked now and then: has the first one been the first for so long?"""
        first = self.first
        if first != self._watched:
            self._watched, self._watched_since_s = first, now_s
        elif first >= 0 and now_s - self._watched_since_s >= PATIENCE_S:
            self._watched = _NONE
            return True
        return False
