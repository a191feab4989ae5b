"""Bounds the answers to requests that repeat names.

Kafka answers each repetition in full. Here the first REPETITIONS_MAX are answered, and the rest get INVALID_REQUEST, Kafka's
error for repetitions in IncrementalAlterConfigs and ListOffsets: a name takes a few bytes, a response many thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.controller.metadata.image import MetadataImage

REPETITIONS_MAX: Final = 10  # in a request
PARTITIONS_NAMED_MAX: Final = 10_000  # or as many as exist
MESSAGE: Final = f"The request repeats names more than {REPETITIONS_MAX} times."
TOO_MANY_TOPICS: Final = "The request names more topics than there are."
TOO_MANY_PARTITIONS: Final = "The request names more partitions than there are."


class Repetitions:
    """The names that one request has repeated."""

    def __init__(self) -> None:
        self._seen: set[object] = set()
        self._left = REPETITIONS_MAX

    def are_too_many(self, name: object) -> bool:
        """Whether this name is a repetition above the limit. To be called once for each name."""
        if name not in self._seen:
            self._seen.add(name)
            return False
        self._left -= 1
        return self._left < 0


def are_too_many_partitions(image: MetadataImage, by_topic: Sequence[int]) -> bool:
    """Whether a request that names so many partitions of each topic, or so many topics, must name some of them more than
    once, or some that do not exist."""
    named = max(sum(by_topic), len(by_topic))
    return named > PARTITIONS_NAMED_MAX and named > partitions_named_max(image)


def partitions_named_max(image: MetadataImage) -> int:
    """The number of partitions that a request may name."""
    return max(PARTITIONS_NAMED_MAX, sum(len(topic.partitions) for topic in image.topics.values()))
