"""Log directories of a broker (KIP-858): which are online, and which of them holds each replica.

A directory that goes offline takes its replicas with it: partitions they led get another leader of the ISR,
or none. When it is back, a partition without a leader is led from there again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from barnabas.controller.decision import Decision
from barnabas.controller.image import BrokerRegistration, MetadataImage, PartitionState
from barnabas.wire.messages.metadata_records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from barnabas.wire.primitives import ZERO_UUID

UNASSIGNED: Final = ZERO_UUID  # DirectoryId.UNASSIGNED: nobody has said yet
LOST: Final = bytes(15) + b"\x01"  # DirectoryId.LOST: in one that is offline
MIGRATING: Final = bytes(15) + b"\x02"  # DirectoryId.MIGRATING: while ZooKeeper was left

NO_LEADER: Final = -1


def directory_of(state: PartitionState, broker_id: int) -> bytes:
    """The id of the directory that holds the broker's replica, UNASSIGNED when unknown."""
    if broker_id not in state.replicas:
        return UNASSIGNED
    index = state.replicas.index(broker_id)
    return state.directories[index] if index < len(state.directories) else UNASSIGNED


def is_online(brokers: Mapping[int, BrokerRegistration], state: PartitionState, broker_id: int) -> bool:
    """Whether the broker is there and the directory of its replica works, as far as the metadata knows."""
    broker = brokers.get(broker_id)
    if broker is None or broker.fenced:
        return False
    directory = directory_of(state, broker_id)
    if directory in (UNASSIGNED, MIGRATING):
        return True
    return directory != LOST and (not broker.log_dirs or directory in broker.log_dirs)


def report_directories(image: MetadataImage, broker_id: int, online: Sequence[bytes]) -> Decision[int]:
    """The broker's directories that work, by id; the response is how many partitions change their leader."""
    broker = image.brokers[broker_id]
    now = msgspec.structs.replace(broker, log_dirs=sorted(online))
    changes = list(_leader_changes(image, {**image.brokers, broker_id: now}, broker_id))
    if now.log_dirs == broker.log_dirs:
        return Decision(changes, len(changes))
    told = BrokerRegistrationChangeRecord(
        broker_id=broker_id, broker_epoch=broker.broker_epoch, log_dirs=now.log_dirs
    )
    return Decision([told, *changes], len(changes))


def _leader_changes(
    image: MetadataImage, brokers: Mapping[int, BrokerRegistration], broker_id: int
) -> Iterator[PartitionChangeRecord]:
    """For partitions that `broker_id` leads and can't any more, and for those that nobody leads and it can."""
    for topic in image.topics.values():
        for index, state in topic.partitions.items():
            if state.leader == broker_id:
                if is_online(brokers, state, broker_id):
                    continue
            elif state.leader != NO_LEADER or broker_id not in state.isr:
                continue
            leader = next((one for one in state.isr if is_online(brokers, state, one)), NO_LEADER)
            if leader == state.leader:
                continue
            change = PartitionChangeRecord(topic_id=topic.topic_id, partition_id=index, leader=leader)
            if leader != NO_LEADER:  # or the ISR stays: somebody in it has every committed record
                isr = [one for one in state.isr if is_online(brokers, state, one)]
                change.isr = isr if isr != state.isr else None
            yield change


def assign_directories(
    image: MetadataImage, broker_id: int, assigned: Mapping[tuple[bytes, int], bytes]
) -> Decision[None]:
    """Which directory (by id) holds the broker's replicas of these partitions, (topic id, index) each.

    Partitions that are gone by now are passed over.
    """
    records: list[msgspec.Struct] = []
    for (topic_id, index), directory in assigned.items():
        topic = image.topic_by_id(topic_id)
        state = topic.partitions.get(index) if topic is not None else None
        if state is None or broker_id not in state.replicas or directory_of(state, broker_id) == directory:
            continue
        directories = [
            directory if replica == broker_id else directory_of(state, replica) for replica in state.replicas
        ]
        records.append(PartitionChangeRecord(topic_id=topic_id, partition_id=index, directories=directories))
    return Decision(records, None)
