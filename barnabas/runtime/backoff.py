"""Pauses between attempts that fail: doubled after each failure in a row, up to a limit."""

from __future__ import annotations

from typing import Final

from barnabas.runtime.interface import Runtime

FIRST_S: Final = 0.1
LONGEST_S: Final = 5.0
_DOUBLINGS_MAX: Final = 10


class Backoff:
    """Counts failures in a row. Pauses are random, from half of the current length up to all of it, so that clients which
    failed together do not return together."""

    def __init__(self, runtime: Runtime, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self.failures = 0  # in a row
        self._random = runtime.random
        self._first_s = first_s
        self._longest_s = longest_s

    @property
    def is_longest(self) -> bool:
        """Whether the next pause is as long as pauses get."""
        return self._length_s() >= self._longest_s

    def next_s(self) -> float:
        """Counts a failure and returns the pause that follows it."""
        length_s = self._length_s()
        self.failures += 1
        return length_s * self._random.uniform(0.5, 1)

    def _length_s(self) -> float:
        return min(self._first_s * 2.0 ** min(self.failures, _DOUBLINGS_MAX), self._longest_s)

    def reset(self) -> None:
        """An attempt has succeeded."""
        self.failures = 0
