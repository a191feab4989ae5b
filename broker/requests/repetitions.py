"""Bounds what a request is answered that names the same thing again and again.

Where Kafka answers each repetition in full, some are answered so here. The rest get INVALID_REQUEST, which is what Kafka
says of repetitions elsewhere (IncrementalAlterConfigs, ListOffsets): a name takes a few bytes, an answer many thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.controller.metadata.image import MetadataImage

REPETITIONS_MAX: Final = 10  # in a request
PARTITIONS_NAMED_MAX: Final = 10_000  # or all that there are
MESSAGE: Final = f"The request repeats names more than {REPETITIONS_MAX} times."
TOO_MANY_TOPICS: Final = "The request names more topics than there are."
TOO_MANY_PARTITIONS: Final = "The request names more partitions than there are."


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


def are_too_many_partitions(image: MetadataImage, by_topic: Sequence[int]) -> bool:
    """Whether a request that names so many partitions of each topic, or so many topics, must name some of them again and
    again, or some that are not."""
    named = max(sum(by_topic), len(by_topic))
    return named > PARTITIONS_NAMED_MAX and named > partitions_named_max(image)


def partitions_named_max(image: MetadataImage) -> int:
    """How many partitions a request may name."""
    return max(PARTITIONS_NAMED_MAX, sum(len(topic.partitions) for topic in image.topics.values()))
