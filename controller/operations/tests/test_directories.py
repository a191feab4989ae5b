"""Leaders follow the log directories that work, with one broker and with several."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from barnabas.controller.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionState,
    partition_record,
)
from barnabas.controller.operations.cluster_view import LOST, MIGRATING, UNASSIGNED, directory_of
from barnabas.controller.operations.directories import assign_replicas, is_online, report_directories
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from barnabas.wire.messages.metadata_records import RegisterBrokerRecord, TopicRecord

A, B, C = (bytes([number]) * 16 for number in (7, 8, 9))
TOPIC_ID = b"t" * 16


class Settings:
    """The controller's own configuration: Kafka's defaults."""

    node_id = 1

    def value(self, name: str) -> str | None:
        return {"min.insync.replicas": "1"}.get(name)


SETTINGS = Settings()


def image(*partitions: tuple[Sequence[int], Sequence[bytes], int]) -> MetadataImage:
    """Brokers 1 (A, B) and 2 (C), and a topic of partitions (replicas, directories, leader)."""
    made, delta = MetadataImage(), MetadataDelta()
    for broker_id, log_dirs in ((1, [A, B]), (2, [C])):
        made.replay(
            RegisterBrokerRecord(broker_id=broker_id, broker_epoch=1, log_dirs=log_dirs, fenced=False),
            delta,
        )
    made.replay(TopicRecord(name="t", topic_id=TOPIC_ID), delta)
    for index, (replicas, directories, leader) in enumerate(partitions):
        state = PartitionState(
            replicas=list(replicas),
            isr=list(replicas),
            leader=leader,
            leader_epoch=5,
            partition_epoch=3,
            directories=list(directories),
        )
        made.replay(partition_record(TOPIC_ID, index, state), delta)
    return made


def apply(made: MetadataImage, records: Sequence[msgspec.Struct]) -> None:
    delta = MetadataDelta()
    for record in records:
        made.replay(record, delta)


def leaders(made: MetadataImage) -> list[tuple[int, int, list[int]]]:
    """(leader, leader epoch, ISR) by partition."""
    return [(state.leader, state.leader_epoch, state.isr) for state in made.topics["t"].partitions.values()]


def test_a_failed_directory_loses_leadership_and_regains_it_when_online() -> None:
    made = image(([1], [A], 1), ([1], [B], 1), ([1], [UNASSIGNED], 1), ([1], [MIGRATING], 1))
    decision = report_directories(made, SETTINGS, 1, [A])
    assert decision.response == 1
    apply(made, decision.records)
    assert leaders(made) == [(1, 5, [1]), (-1, 6, [1]), (1, 5, [1]), (1, 5, [1])]
    assert made.brokers[1].log_dirs == [A]
    assert not report_directories(made, SETTINGS, 1, [A]).records
    apply(made, report_directories(made, SETTINGS, 1, [B, A]).records)
    assert leaders(made) == [(1, 5, [1]), (1, 7, [1]), (1, 5, [1]), (1, 5, [1])]
    assert made.brokers[1].log_dirs == [A, B]


def test_another_replica_in_sync_takes_over() -> None:
    made = image(([1, 2], [B, C], 1), ([2, 1], [C, B], 2), ([1, 2], [B, LOST], 1))
    apply(made, report_directories(made, SETTINGS, 1, [A]).records)
    assert leaders(made) == [(2, 6, [2]), (2, 5, [2]), (-1, 6, [2])]


def test_online_requires_an_unfenced_broker_and_a_working_directory() -> None:
    made = image(([1, 2], [A, C], 1), ([1, 2], [LOST, C], 1), ([1, 2], [C, C], 1), ([1, 2], [], 1))
    states = list(made.topics["t"].partitions.values())
    assert [is_online(made.brokers, state, 1) for state in states] == [True, False, False, True]
    assert not is_online(made.brokers, states[0], 3)
    fenced: BrokerRegistration = msgspec.structs.replace(made.brokers[1], fenced=True)
    assert not is_online({1: fenced}, states[0], 1)


def test_assigned_directories_are_in_the_image() -> None:
    made = image(([1, 2], [UNASSIGNED, C], 1), ([1], [A], 1), ([2], [C], 2))
    assigned = [(TOPIC_ID, 0, B), (TOPIC_ID, 1, A), (TOPIC_ID, 2, A), (TOPIC_ID, 9, A), (b"x" * 16, 0, A)]
    directories = [
        DirectoryData(
            id=directory,
            topics=[TopicData(topic_id=topic_id, partitions=[PartitionData(partition_index=index)])],
        )
        for topic_id, index, directory in assigned
    ]
    request = AssignReplicasToDirsRequest(broker_id=1, broker_epoch=1, directories=directories)
    decision = assign_replicas(made, SETTINGS, request)
    assert len(decision.records) == 1  # the others are so already, not ours, or gone
    assert [each.topics[0].partitions[0].error_code for each in decision.response.directories] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    apply(made, decision.records)
    state = made.topics["t"].partitions[0]
    assert (state.directories, state.leader_epoch, state.partition_epoch) == ([B, C], 5, 4)
    assert directory_of(state, 2) == C
