"""DescribeLogDirs (35), versions 1-5: the replicas in each log directory, with sizes in bytes.

v3 top-level error, v4 volume sizes (KIP-827), v5 whether a directory is cordoned (KIP-1066).

A replica that is being moved (AlterReplicaLogDirs) appears twice: in its current directory, and as a future replica in the
other one, with the number of records that it still lacks. An offline directory has only an error.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.storage.manager.manager import LogManager
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

Placed = tuple[str, str, DescribeLogDirsPartition]  # (directory, topic, partition)


@api(35, 1, 5)
@sliced
def describe_log_dirs(
    context: HandlerContext, request: DescribeLogDirsRequest
) -> Generator[None, None, DescribeLogDirsResponse]:
    if not allows_cluster(context, Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    manager = context.services.log_manager
    wanted = None
    if request.topics is not None:
        wanted = dict[str, set[int]]()
        for topic in request.topics:
            indexes = wanted.setdefault(topic.topic, set())
            for index in topic.partitions:
                indexes.add(index)
                yield
            yield
    by_directory: dict[str, dict[str, list[DescribeLogDirsPartition]]] = {}
    for placed in _placed(manager, wanted):
        if placed is not None:
            log_dir, name, partition = placed
            by_directory.setdefault(log_dir, {}).setdefault(name, []).append(partition)
        yield
    return DescribeLogDirsResponse(
        results=[
            _result(manager, log_dir, by_directory.get(log_dir, {}).items())
            for log_dir in manager.directories.paths
        ]
    )


def _placed(manager: LogManager, wanted: dict[str, set[int]] | None) -> Iterator[Placed | None]:
    """Each log and each move that is wanted; None in place of others."""
    for log in list(manager.logs()):
        if wanted is None or log.partition in wanted.get(log.topic, ()):
            yield (
                log.log_dir,
                log.topic,
                DescribeLogDirsPartition(
                    partition_index=log.partition,
                    partition_size=log.size,
                    offset_lag=max(log.high_watermark - log.log_end_offset, 0),
                ),
            )
        else:
            yield None
    for move in list(manager.moves.all()):
        log = move.log
        if wanted is None or log.partition in wanted.get(log.topic, ()):
            yield (
                move.target_dir,
                log.topic,
                DescribeLogDirsPartition(
                    partition_index=log.partition,
                    partition_size=move.size,
                    offset_lag=max(log.log_end_offset - move.end_offset, 0),
                    is_future_key=True,
                ),
            )
        else:
            yield None


def _result(
    manager: LogManager, log_dir: str, topics: Iterable[tuple[str, list[DescribeLogDirsPartition]]]
) -> DescribeLogDirsResult:
    path = os.path.abspath(log_dir)
    if log_dir in manager.directories.offline:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path)
    total, usable = manager.directories.volume(log_dir)
    return DescribeLogDirsResult(
        log_dir=path,
        topics=[DescribeLogDirsTopic(name=topic, partitions=partitions) for topic, partitions in topics],
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=log_dir in manager.directories.cordoned,
    )
