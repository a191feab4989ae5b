"""AlterReplicaLogDirs (34), versions 1-2: move replicas of this broker to other log directories (KIP-113).

v2 is flexible. The answer says that the move has begun; DescribeLogDirs shows how far it is, and that the
replica lies in its new directory when it is over. Asking for the directory that it lies in ends a move.
"""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.registry import api
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


@api(34, 1, 2)
def alter_replica_log_dirs(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    wanted: dict[
        str, dict[int, str]
    ] = {}  # of a partition named twice the last directory counts, as in Kafka
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                wanted.setdefault(topic.name, {})[index] = directory.path
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic,
                partitions=[
                    AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=_begin(context, topic, index, path)
                    )
                    for index, path in paths.items()
                ],
            )
            for topic, paths in wanted.items()
        ]
    )


def _begin(context: RequestContext, topic: str, index: int, path: str) -> ErrorCode:
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
