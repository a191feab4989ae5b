"""Bounds what a request is answered that names the same thing again and again.

Where Kafka answers each repetition in full, some are answered so here. The rest get INVALID_REQUEST, which is what Kafka
says of repetitions elsewhere (IncrementalAlterConfigs, ListOffsets): a name takes a few bytes, an answer many thousands.
"""

from __future__ import annotations

from typing import Final

REPETITIONS_MAX: Final = 100  # in a request
MESSAGE: Final = f"The request repeats names more than {REPETITIONS_MAX} times."


class Repetitions:
    """Of one request."""

    def __init__(self) -> None:
        self._seen: set[object] = set()
        self._left = REPETITIONS_MAX

    def are_too_many(self, name: object) -> bool:
        """Whether this name is a repetition, and one too many; to be called once for each name."""
        if name not in self._seen:
            self._seen.add(name)
            return False
        self._left -= 1
        return self._left < 0
