"""Internal topics, with the settings that Kafka creates them with."""

from __future__ import annotations

from typing import Protocol

from barnabas.controller.operations.topics import NewTopic

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"


class InternalTopicSettings(Protocol):
    """The broker properties that shape internal topics."""

    @property
    def offsets_topic_num_partitions(self) -> int: ...
    @property
    def offsets_topic_replication_factor(self) -> int: ...
    @property
    def offsets_topic_segment_bytes(self) -> int: ...
    @property
    def transaction_state_log_num_partitions(self) -> int: ...
    @property
    def transaction_state_log_replication_factor(self) -> int: ...
    @property
    def transaction_state_log_segment_bytes(self) -> int: ...
    @property
    def transaction_state_log_min_isr(self) -> int: ...
    @property
    def share_coordinator_state_topic_num_partitions(self) -> int: ...
    @property
    def share_coordinator_state_topic_replication_factor(self) -> int: ...
    @property
    def share_coordinator_state_topic_segment_bytes(self) -> int: ...
    @property
    def share_coordinator_state_topic_min_isr(self) -> int: ...


def group_metadata_topic(settings: InternalTopicSettings) -> NewTopic:
    """`__consumer_offsets`, which the group coordinator creates with the first group."""
    return NewTopic(
        GROUP_METADATA_TOPIC,
        num_partitions=settings.offsets_topic_num_partitions,
        replication_factor=settings.offsets_topic_replication_factor,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", str(settings.offsets_topic_segment_bytes)),
        ),
    )


def transaction_state_topic(settings: InternalTopicSettings) -> NewTopic:
    """`__transaction_state`."""
    return NewTopic(
        TRANSACTION_STATE_TOPIC,
        num_partitions=settings.transaction_state_log_num_partitions,
        replication_factor=settings.transaction_state_log_replication_factor,
        configs=(
            ("unclean.leader.election.enable", "false"),
            ("compression.type", "uncompressed"),
            ("cleanup.policy", "compact"),
            ("min.insync.replicas", str(settings.transaction_state_log_min_isr)),
            ("segment.bytes", str(settings.transaction_state_log_segment_bytes)),
        ),
    )


def share_group_state_topic(settings: InternalTopicSettings) -> NewTopic:
    """`__share_group_state`. It is not compacted: the share coordinator deletes the records that it no longer needs."""
    return NewTopic(
        SHARE_GROUP_STATE_TOPIC,
        num_partitions=settings.share_coordinator_state_topic_num_partitions,
        replication_factor=settings.share_coordinator_state_topic_replication_factor,
        configs=(
            ("cleanup.policy", "delete"),
            ("compression.type", "producer"),
            ("retention.ms", "-1"),
            ("min.insync.replicas", str(settings.share_coordinator_state_topic_min_isr)),
            ("segment.bytes", str(settings.share_coordinator_state_topic_segment_bytes)),
        ),
    )


def auto_created_topic(name: str, settings: InternalTopicSettings) -> NewTopic:
    """A topic that is created because a client requested its metadata."""
    if name == GROUP_METADATA_TOPIC:
        return group_metadata_topic(settings)
    if name == TRANSACTION_STATE_TOPIC:
        return transaction_state_topic(settings)
    if name == SHARE_GROUP_STATE_TOPIC:
        return share_group_state_topic(settings)
    return NewTopic(name)
