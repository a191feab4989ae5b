"""The client of partition leaders, this broker or another, for the high watermarks of partitions.

Source: NetworkPartitionMetadataClient of Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.peer_client import AskBroker
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.wire.messages import list_offsets as listing

LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 10
LATEST: Final = -1  # in place of a timestamp: the high watermark
CONSUMER: Final = -1  # in place of a replica id

TopicPartition: TypeAlias = tuple[str, int]


class LatestOffsets:
    """Asks the leaders of partitions for their high watermarks."""

    def __init__(self, image: Callable[[], MetadataImage], ask: AskBroker) -> None:
        self._image = image
        self._ask = ask

    def find(
        self,
        partitions: Iterable[TopicPartition],
        done: Callable[[Mapping[TopicPartition, int | ErrorCode]], object],
    ) -> None:
        """`done(high watermark or error of each)`."""
        found: dict[TopicPartition, int | ErrorCode] = {}
        by_leader: dict[int, dict[str, list[int]]] = {}
        image = self._image()
        for name, index in partitions:
            topic = image.topics.get(name)
            state = None if topic is None else topic.partitions.get(index)
            if state is None or state.leader < 0:
                found[name, index] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                by_leader.setdefault(state.leader, {}).setdefault(name, []).append(index)
        missing = len(by_leader) + 1

        def one_less() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done(found)

        for leader, topics in by_leader.items():
            self._ask_leader(leader, topics, found, one_less)
        one_less()

    def _ask_leader(
        self,
        leader: int,
        topics: Mapping[str, Sequence[int]],
        found: dict[TopicPartition, int | ErrorCode],
        done: Callable[[], object],
    ) -> None:
        from barnabas.wire.messages import list_offsets as listing  # late: a start needs none of it

        request = listing.ListOffsetsRequest(
            replica_id=CONSUMER,
            topics=[
                listing.ListOffsetsTopic(
                    name, [listing.ListOffsetsPartition(index, timestamp=LATEST) for index in indexes]
                )
                for name, indexes in topics.items()
            ],
        )

        def answered(response: listing.ListOffsetsResponse | None, error: ErrorCode) -> None:
            missing = error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            found.update({(name, index): missing for name, indexes in topics.items() for index in indexes})
            for topic in () if response is None else response.topics:
                for each in topic.partitions:
                    failed = ErrorCode.of(each.error_code)
                    found[topic.name, each.partition_index] = failed or each.offset
            done()

        self._ask(leader, LIST_OFFSETS, LIST_OFFSETS_VERSION, request, answered)
