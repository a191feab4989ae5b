"""AlterReplicaLogDirs (34), versions 1-2: move replicas of this broker to other log directories (KIP-113).

v2 is flexible. The response says that the move has begun; DescribeLogDirs shows its progress, and afterwards the replica in
its new directory. A request for the directory that the replica lies in cancels a move.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


@api(34, 1, 2)
@sliced
def alter_replica_log_dirs(
    context: HandlerContext, request: AlterReplicaLogDirsRequest
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    # The last directory of a partition that is named twice counts, as in Kafka.
    wanted: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                wanted.setdefault(topic.name, {})[index] = directory.path
                yield
            yield
        yield
    may_alter = allows_cluster(context, Operation.ALTER)
    response = AlterReplicaLogDirsResponse()
    for name, paths in wanted.items():
        serve = partial(_begin, context, name) if may_alter else _refuse
        partitions = yield from collect(serve, paths.items())
        response.results.append(AlterReplicaLogDirTopicResult(name, partitions))
    return response


def _refuse(place: tuple[int, str]) -> AlterReplicaLogDirPartitionResult:
    return AlterReplicaLogDirPartitionResult(place[0], ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _begin(context: HandlerContext, topic: str, place: tuple[int, str]) -> AlterReplicaLogDirPartitionResult:
    return AlterReplicaLogDirPartitionResult(place[0], _move(context, topic, *place))


def _move(context: HandlerContext, topic: str, index: int, path: str) -> ErrorCode:
    services = context.services
    try:
        services.log_manager.moves.begin(topic, index, path)
    except StorageError as refusal:
        if refusal.error != ErrorCode.REPLICA_NOT_AVAILABLE:
            return refusal.error
        if services.partitions.get(topic, index) is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR  # it is here, and offline
        known = services.controller.image.topics.get(topic)
        if known is None or index not in known.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return refusal.error
    return ErrorCode.NONE
