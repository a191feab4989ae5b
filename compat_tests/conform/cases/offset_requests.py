"""OffsetCommit and OffsetFetch requests in the shape each version takes."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

from compat_tests.conform.session import Topic, made_up_id

UNKNOWN = Topic("no-such-topic", made_up_id(77))
FIRST = (0,)


def commit(
    group: str,
    *topics: Topic,
    partitions: Sequence[int] = FIRST,
    offset: int = 5,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    metadata: str | None = "meta",
    leader_epoch: int = 0,
    retention_ms: int = -1,
) -> OffsetCommitRequest:
    """The same offset for each of `partitions` of each topic, by name and id both."""
    wanted = [
        OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=leader_epoch,
            committed_metadata=metadata,
        )
        for index in partitions
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=[OffsetCommitRequestTopic(name=name, topic_id=id_, partitions=wanted) for name, id_ in topics],
    )


def fetch_offsets(
    version: int,
    *groups: str,
    topics: Sequence[Topic] | None = None,
    partitions: Sequence[int] = FIRST,
    require_stable: bool = False,
    member: str | None = None,
    member_epoch: int = -1,
) -> OffsetFetchRequest:
    """`topics` None asks for everything. Below version 8 a request has one group."""
    indexes = list(partitions)
    if version < 8:
        by_name = [
            OffsetFetchRequestTopic(name=topic.name, partition_indexes=indexes) for topic in topics or ()
        ]
        return OffsetFetchRequest(
            group_id=groups[0], topics=None if topics is None else by_name, require_stable=require_stable
        )
    wanted = [
        OffsetFetchRequestTopics(name=name, topic_id=id_, partition_indexes=indexes)
        for name, id_ in topics or ()
    ]
    return OffsetFetchRequest(
        require_stable=require_stable,
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                member_id=member,
                member_epoch=member_epoch,
                topics=None if topics is None else wanted,
            )
            for group in groups
        ],
    )
