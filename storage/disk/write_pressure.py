"""Detects disks that do not keep up with the writes, by how long writes take.

A single slow write may come from a busy processor that has suspended the thread. So after a slow write, further slow ones
count only if the thread has slept in them, as it does when the kernel holds it back because too much memory waits for the
disk.
"""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger("barnabas.storage")

SLOW_WRITE_S: Final = 0.010
_SLOW_WITHIN_S: Final = 1.0
_PRESSURE_S: Final = 3.0


class WritePressure:
    """The log directories whose disk is behind. Times are of the runtime's monotonic clock, in s."""

    __slots__ = ("_slow_at", "_until")

    def __init__(self) -> None:
        self._slow_at: dict[str, float] = {}
        self._until: dict[str, float] = {}

    def is_suspected(self, log_dir: str, now: float) -> bool:
        """Whether a write has been slow a moment ago."""
        return now - self._slow_at.get(log_dir, -_SLOW_WITHIN_S) < _SLOW_WITHIN_S

    def slow(self, log_dir: str, now: float, *, waited: bool) -> None:
        """A large append to a log of the directory was slow; `waited`: its thread is known to have slept."""
        self._slow_at[log_dir] = now
        if waited:
            if log_dir not in self._until:
                logger.info("the disk of %s is behind: large appends wait for it", log_dir)
            self._until[log_dir] = now + _PRESSURE_S

    def extend(self, log_dir: str, now: float) -> None:
        """Writing back is still slow: without a delay, large appends would soon exceed the disk's speed again."""
        if log_dir in self._until:
            self._until[log_dir] = now + _PRESSURE_S

    def is_on(self, log_dir: str, now: float) -> bool:
        """Whether the disk has been slow recently."""
        until = self._until.get(log_dir)
        if until is None:
            return False
        if until <= now:
            del self._until[log_dir]
            return False
        return True
