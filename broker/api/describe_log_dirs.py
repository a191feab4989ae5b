"""DescribeLogDirs (35), versions 1-5: what lies in each log directory, with sizes in bytes.

v3 top-level error, v4 volume sizes (KIP-827), v5 whether a directory is cordoned (never, here).
"""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.partition import Partition
from barnabas.broker.registry import api
from barnabas.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@api(35, 1, 5)
def describe_log_dirs(context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    by_directory: dict[str, dict[str, list[Partition]]] = {}
    for partition in context.services.partitions.all():
        if wanted is None or (partition.topic, partition.partition) in wanted:
            topics = by_directory.setdefault(partition.log.log_dir, {})
            topics.setdefault(partition.topic, []).append(partition)
    response = DescribeLogDirsResponse()
    for log_dir in context.services.log_manager.log_dirs:
        total, usable = context.services.log_manager.volume(log_dir)
        response.results.append(
            DescribeLogDirsResult(
                log_dir=log_dir,
                topics=[
                    DescribeLogDirsTopic(
                        name=topic,
                        partitions=[
                            DescribeLogDirsPartition(
                                partition_index=part.partition, partition_size=part.log.size
                            )
                            for part in partitions
                        ],
                    )
                    for topic, partitions in by_directory.get(log_dir, {}).items()
                ],
                total_bytes=total,
                usable_bytes=usable,
            )
        )
    return response
