"""DescribeQuorum (55), versions 0-2: leader, voters and observers of the metadata log, and their end offsets (KIP-595).

v1 last fetch and caught-up times (KIP-836), v2 directory ids, listeners and error messages (KIP-853). The values come from
`services.quorum`; a node that is alone describes itself.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.quorum_info import QuorumInfo, QuorumReplica
from barnabas.controller.operations.topic_names import CLUSTER_METADATA_TOPIC
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
    TopicData,
)

if TYPE_CHECKING:
    from barnabas.broker.services import Services


@api(55, 0, 2, controller=True)
@sliced
def describe(
    context: HandlerContext, request: DescribeQuorumRequest
) -> Generator[None, None, DescribeQuorumResponse]:
    if not allows_cluster(context, Operation.DESCRIBE):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeQuorumResponse(error_code=error, error_message=error.message)
    if not _asks_for_metadata(request.topics):
        return (yield from _unknown(request.topics))
    quorum = _quorum(context.services)
    partition = ResponsePartitionData(
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=[_replica(each) for each in quorum.voters],
        observers=[_replica(each) for each in quorum.observers],
    )
    return DescribeQuorumResponse(
        topics=[ResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])],
        nodes=[
            Node(
                node_id=node_id,
                listeners=[Listener(name=each.name, host=each.host, port=each.port) for each in listeners],
            )
            for node_id, listeners in sorted(quorum.listeners.items())
        ],
    )


def _quorum(services: Services) -> QuorumInfo:
    if services.quorum is not None:
        return services.quorum()
    controller, now = services.controller, services.runtime.time_ms()
    end = controller.image.offset + 1
    return QuorumInfo(
        leader_id=services.node_id,
        leader_epoch=controller.epoch,
        high_watermark=end,
        voters=[QuorumReplica(services.node_id, end, last_fetch_ms=now, last_caught_up_ms=now)],
    )


def _replica(replica: QuorumReplica) -> ReplicaState:
    return ReplicaState(
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_ms,
        last_caught_up_timestamp=replica.last_caught_up_ms,
    )


def _asks_for_metadata(topics: list[TopicData]) -> bool:
    if len(topics) != 1 or topics[0].topic_name != CLUSTER_METADATA_TOPIC:
        return False
    partitions = topics[0].partitions
    return len(partitions) == 1 and partitions[0].partition_index == 0


def _unknown(topics: list[TopicData]) -> Generator[None, None, DescribeQuorumResponse]:
    def refuse(partition: PartitionData) -> ResponsePartitionData:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ResponsePartitionData(
            partition_index=partition.partition_index, error_code=error, error_message=error.message
        )

    response = DescribeQuorumResponse()
    for topic in topics:
        partitions = yield from collect(refuse, topic.partitions)
        response.topics.append(ResponseTopicData(topic.topic_name, partitions))
        yield
    return response
