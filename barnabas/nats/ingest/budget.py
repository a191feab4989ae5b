"""How many bytes may wait in memory before no more is read: nats.buffer.bytes, over all that share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

RESUME_SHARE: Final = 0.5  # of the budget: below it reading goes on


class Budget:
    """`on_full(bool)` is told when more than `bytes_max` wait, and when it has become much less."""

    __slots__ = ("_is_full", "_on_full", "_sizes", "_total", "bytes_max")

    def __init__(self, bytes_max: int, on_full: Callable[[bool], object]) -> None:
        self.bytes_max = bytes_max
        self._on_full = on_full
        self._sizes: dict[object, int] = {}
        self._total = 0
        self._is_full = False

    def note(self, who: object, size: int) -> None:
        """So many bytes wait at `who` now."""
        self._total += size - self._sizes.pop(who, 0)
        if size:
            self._sizes[who] = size
        if not self._is_full and self._total > self.bytes_max:
            self._is_full = True
            self._on_full(True)
        elif self._is_full and self._total <= self.bytes_max * RESUME_SHARE:
            self._is_full = False
            self._on_full(False)
