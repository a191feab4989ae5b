"""Log directories of a broker (KIP-858): which are online, and which has each replica.

When a directory goes offline, partitions that its replicas lead get another leader from the ISR, or none. When it is online again,
its replicas may lead partitions without a leader. A directory may be cordoned (KIP-1066): it keeps its replicas and gets no new
ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage, PartitionState, TopicImage
from barnabas.controller.operations.cluster_view import (
    Rules,
    check_broker_epoch,
    directory_of,
    has_directory,
)
from barnabas.controller.operations.leadership import broker_unfenced, directories_failed
from barnabas.controller.operations.partition_change import Wanted
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


def is_online(brokers: Mapping[int, BrokerRegistration], state: PartitionState, broker_id: int) -> bool:
    """Whether the broker is unfenced and the directory of its replica online, according to the metadata."""
    broker = brokers.get(broker_id)
    return broker is not None and not broker.fenced and has_directory(broker, directory_of(state, broker_id))


def report_directories(
    image: MetadataImage, settings: ControllerSettings, broker_id: int, online: Sequence[bytes]
) -> Decision[int]:
    """`online`: ids of all directories of the broker that work. The response is the number of partitions that change."""
    broker = image.brokers[broker_id]
    now = msgspec.structs.replace(broker, log_dirs=sorted(online))
    changes = list(directories_failed(image, settings, broker_id, lambda each: not has_directory(now, each)))
    changed = {(change.topic_id, change.partition_id) for change in changes}
    changes += [
        change
        for change in broker_unfenced(image, settings, now)
        if (change.topic_id, change.partition_id) not in changed
    ]
    if now.log_dirs == broker.log_dirs:
        return Decision(changes, len(changes))
    return Decision([_directories_record(now), *changes], len(changes))


def fail_directories(
    image: MetadataImage, settings: ControllerSettings, broker: BrokerRegistration, offline: Sequence[bytes]
) -> Iterator[msgspec.Struct]:
    """`offline`: ids of all directories of the broker that have failed, also of those known before. They are recorded last: until
    then each heartbeat fails them."""
    online = [directory for directory in broker.log_dirs if directory not in offline]
    yield from directories_failed(image, settings, broker.broker_id, lambda each: each in offline)
    yield _directories_record(msgspec.structs.replace(broker, log_dirs=online))


def cordon(broker: BrokerRegistration, cordoned: Sequence[bytes] | None) -> list[msgspec.Struct]:
    """`cordoned`: ids of all directories of the broker that take no new replicas; None: unchanged."""
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


def _with_directory(state: PartitionState, broker_id: int, directory: bytes) -> list[bytes]:
    return [directory if replica == broker_id else directory_of(state, replica) for replica in state.replicas]


def assign_replicas(
    image: MetadataImage, settings: ControllerSettings, request: AssignReplicasToDirsRequest
) -> Decision[AssignReplicasToDirsResponse]:
    """AssignReplicasToDirs: the directories of a broker's replicas.

    A replica that was not in sync and whose former directory is lost was created again: it is empty, and is not eligible until it
    has caught up. (In Kafka it stays eligible after a clean stop.) A broker never creates a replica again that is in sync or
    the only one: such a replica was found in the reported directory.
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
                    error, record = _assign(rules, broker, topic, index, directory.id)
                    records += [record] if record is not None else []
                results.partitions.append(ResponsePartitionData(partition_index=index, error_code=error))
    return Decision(records, response)


def _assign(
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
    unchanged = PartitionChangeRecord(topic_id=topic.topic_id, partition_id=index)
    record = rules.change((topic, index, moved), wanted) or unchanged
    record.directories = moved.directories
    if record.last_known_elr is None and moved.last_known_elr != state.last_known_elr:
        record.last_known_elr = moved.last_known_elr
    return ErrorCode.NONE, record
