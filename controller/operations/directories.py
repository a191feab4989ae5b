"""Log directories of a broker (KIP-858): which are online, and which of them holds each replica.

A directory that goes offline takes its replicas with it: partitions they led get another leader of the ISR,
or none. When it is back, a partition without a leader is led from there again. A directory may be cordoned
(KIP-1066): what it holds stays, and nothing new comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage, PartitionState, TopicImage
from barnabas.controller.operations.cluster_view import (
    LOST,
    MIGRATING,
    UNASSIGNED,
    Rules,
    directory_of,
    has_directory,
    leadership_test,
)
from barnabas.controller.operations.epochs import check_broker_epoch
from barnabas.controller.operations.leadership import broker_there, directories_gone
from barnabas.controller.operations.partition_change import Wanted, change_partition
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    ResponseDirectoryData,
    ResponsePartitionData,
    ResponseTopicData,
)
from barnabas.wire.messages.metadata_records import BrokerRegistrationChangeRecord, PartitionChangeRecord

__all__ = [
    "LOST",
    "MIGRATING",
    "UNASSIGNED",
    "answer_assignment",
    "assign_directories",
    "cordon",
    "directory_of",
    "fail_directories",
    "is_online",
    "report_directories",
]


def is_online(brokers: Mapping[int, BrokerRegistration], state: PartitionState, broker_id: int) -> bool:
    """Whether the broker is there and the directory of its replica works, as far as the metadata knows."""
    broker = brokers.get(broker_id)
    return broker is not None and not broker.fenced and has_directory(broker, directory_of(state, broker_id))


def report_directories(
    image: MetadataImage, settings: ControllerSettings, broker_id: int, online: Sequence[bytes]
) -> Decision[int]:
    """The broker's directories that work, by id, all of them; the response is how many partitions change."""
    broker = image.brokers[broker_id]
    now = msgspec.structs.replace(broker, log_dirs=sorted(online))
    changes = directories_gone(image, settings, broker_id, lambda each: not has_directory(now, each))
    changed = {(change.topic_id, change.partition_id) for change in changes}
    changes += [
        change
        for change in broker_there(image, settings, now)
        if (change.topic_id, change.partition_id) not in changed
    ]
    if now.log_dirs == broker.log_dirs:
        return Decision(changes, len(changes))
    return Decision([_directories_record(now), *changes], len(changes))


def fail_directories(
    image: MetadataImage, settings: ControllerSettings, broker: BrokerRegistration, offline: Sequence[bytes]
) -> list[msgspec.Struct]:
    """Directories of the broker that do not work, among them such as are known already."""
    online = [directory for directory in broker.log_dirs if directory not in offline]
    if online == broker.log_dirs:
        return []
    now = msgspec.structs.replace(broker, log_dirs=online)
    changes = directories_gone(image, settings, broker.broker_id, lambda each: each in offline)
    return [_directories_record(now), *changes]


def cordon(broker: BrokerRegistration, cordoned: Sequence[bytes] | None) -> list[msgspec.Struct]:
    """The broker's directories that take nothing new, all of them; None: unchanged."""
    if cordoned is None or sorted(cordoned) == sorted(broker.cordoned_log_dirs or []):
        return []
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            cordoned_log_dirs=sorted(cordoned),
        )
    ]


def _directories_record(broker: BrokerRegistration) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, log_dirs=broker.log_dirs
    )


def assign_directories(
    image: MetadataImage, broker_id: int, assigned: Mapping[tuple[bytes, int], bytes]
) -> Decision[None]:
    """Which directory (by id) holds the broker's replicas of these partitions, (topic id, index) each.

    Partitions that were deleted meanwhile are ignored.
    """
    records: list[msgspec.Struct] = []
    for (topic_id, index), directory in assigned.items():
        topic = image.topic_by_id(topic_id)
        state = topic.partitions.get(index) if topic is not None else None
        if state is None or broker_id not in state.replicas or directory_of(state, broker_id) == directory:
            continue
        directories = _with_directory(state, broker_id, directory)
        records.append(PartitionChangeRecord(topic_id=topic_id, partition_id=index, directories=directories))
    return Decision(records, None)


def _with_directory(state: PartitionState, broker_id: int, directory: bytes) -> list[bytes]:
    return [directory if replica == broker_id else directory_of(state, replica) for replica in state.replicas]


def answer_assignment(
    image: MetadataImage, settings: ControllerSettings, request: AssignReplicasToDirsRequest
) -> Decision[AssignReplicasToDirsResponse]:
    """AssignReplicasToDirs: the directories of a broker's replicas.

    A replica that was not in sync and whose former directory is lost has been made anew: it is empty, and counts as
    nothing until it has caught up. (Kafka believes it where it stopped cleanly.) One in sync, or without others, is not
    made anew by any broker: it was found in the reported directory.
    """
    try:
        broker = check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except ApiError as api_error:
        return Decision([], AssignReplicasToDirsResponse(error_code=api_error.error))
    rules = Rules(image, settings)
    records: list[msgspec.Struct] = []
    response = AssignReplicasToDirsResponse()
    for directory in request.directories:
        answered = ResponseDirectoryData(id=directory.id)
        response.directories.append(answered)
        for wanted in directory.topics:
            topic = image.topic_by_id(wanted.topic_id)
            results = ResponseTopicData(topic_id=wanted.topic_id)
            answered.topics.append(results)
            for partition in wanted.partitions:
                index = partition.partition_index
                error = ErrorCode.UNKNOWN_TOPIC_ID
                if topic is not None:
                    error, record = _assign(image, rules, broker, topic, index, directory.id)
                    records += [record] if record is not None else []
                results.partitions.append(ResponsePartitionData(partition_index=index, error_code=error))
    return Decision(records, response)


def _assign(
    image: MetadataImage,
    rules: Rules,
    broker: BrokerRegistration,
    topic: TopicImage,
    index: int,
    directory: bytes,
) -> tuple[ErrorCode, PartitionChangeRecord | None]:
    state = topic.partitions.get(index)
    broker_id = broker.broker_id
    if state is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    if broker_id not in state.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
    former = directory_of(state, broker_id)
    if former == directory:
        return ErrorCode.NONE, None
    is_new = not has_directory(broker, former) and broker_id not in state.isr and len(state.replicas) > 1
    moved = msgspec.structs.replace(
        state,
        directories=_with_directory(state, broker_id, directory),
        last_known_elr=[each for each in state.last_known_elr if not is_new or each != broker_id],
    )
    wanted = Wanted()
    if is_new or not has_directory(broker, directory):
        wanted.isr = [replica for replica in state.isr if replica != broker_id]
        wanted.unclean_shutdown = (broker_id,) if is_new else ()
    record = change_partition(
        topic.topic_id, index, moved, rules.of(topic), leadership_test(image, moved), wanted
    ) or PartitionChangeRecord(topic_id=topic.topic_id, partition_id=index)
    record.directories = moved.directories
    if record.last_known_elr is None and moved.last_known_elr != state.last_known_elr:
        record.last_known_elr = moved.last_known_elr
    return ErrorCode.NONE, record
