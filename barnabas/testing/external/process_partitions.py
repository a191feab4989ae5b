"""Partitions of a cluster that is reached over its ports: who leads them, and have another node lead, with Kafka's requests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.contents import UnknownTopic
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.external.remote_kafka import METADATA
from barnabas.testing.operations import RequestFailed
from barnabas.testing.steering.partitions import PartitionInfo
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from barnabas.testing.external.broker_processes import BrokerProcesses

_METADATA_VERSION: Final = 8
_ALTER_PARTITION_REASSIGNMENTS: Final = (45, 0)
_ELECT_LEADERS: Final = (43, 2)
_PREFERRED: Final = 0  # of ElectionType


def partition_info(broker: BrokerProcesses, topic: str, index: int) -> PartitionInfo:
    """UnknownTopic."""
    for each in partitions_of(broker.ask(METADATA, _METADATA_VERSION, _about(topic)), topic):
        if each.partition == index:
            return each
    raise UnknownTopic(f"there is no partition {index} of {topic!r}")


def partitions_of(answer: Any, topic: str | None) -> list[PartitionInfo]:
    """What a node says of a topic, or of all. UnknownTopic."""
    found = []
    for each in answer.topics:
        if ErrorCode.of(each.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic(f"there is no topic {topic!r}")
        for one in each.partitions:
            found.append(
                PartitionInfo(
                    each.name,
                    one.partition_index,
                    one.leader_id,
                    one.leader_epoch,
                    tuple(one.replica_nodes),
                    tuple(one.isr_nodes),
                )
            )
    return found


def wait_until_led(broker: BrokerProcesses, topic: str) -> None:
    """By nodes that are awake, as far as all of these know. UnknownTopic, TimeoutError."""

    def is_led() -> bool:
        awake = {node.node_id for node in broker.awake()}
        return all(each.leader in awake for view in _views(broker, topic) for each in view)

    broker.wait(is_led, f"{topic} is not led by nodes that run")


def wait_until_in_sync(broker: BrokerProcesses, topic: str | None) -> None:
    """TimeoutError, UnknownTopic."""

    def are_in_sync() -> bool:
        awake = {node.node_id for node in broker.awake()}
        return all(
            each.leader in awake and len(each.isr) == len(each.replicas)
            for view in _views(broker, topic)
            for each in view
        )

    broker.wait(are_in_sync, f"not all replicas of {topic or 'all topics'} are in sync")


def move_leader(broker: BrokerProcesses, topic: str, index: int, node_id: int | None) -> None:
    """ValueError, UnknownTopic, RequestFailed, TimeoutError."""
    now = partition_info(broker, topic, index)
    node_id = now.successor(node_id, [node.node_id for node in broker.awake()])
    if node_id == now.leader:
        return
    _prefer(broker, topic, index, [node_id, *(each for each in now.replicas if each != node_id)])
    _elect(broker, topic, index)

    def leads() -> bool:
        views = _views(broker, topic)
        return all(each.leader == node_id for view in views for each in view if each.partition == index)

    broker.wait(leads, f"node {node_id} does not lead {topic}-{index}")


def _prefer(broker: BrokerProcesses, topic: str, index: int, replicas: list[int]) -> None:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[partition])]
    )
    answer = broker.ask(*_ALTER_PARTITION_REASSIGNMENTS, request)
    _check(answer, [each for one in answer.responses for each in one.partitions])

    def is_so() -> bool:
        return partition_info(broker, topic, index).replicas == tuple(replicas)

    broker.wait(is_so, f"{topic}-{index} keeps its replicas as they were")


def _elect(broker: BrokerProcesses, topic: str, index: int) -> None:
    request = ElectLeadersRequest(
        election_type=_PREFERRED,
        topic_partitions=[TopicPartitions(topic=topic, partitions=[index])],
    )
    answer = broker.ask(*_ELECT_LEADERS, request)
    results = [each for one in answer.replica_election_results for each in one.partition_result]
    _check(answer, results, ErrorCode.ELECTION_NOT_NEEDED)


def _check(answer: Any, results: list[Any], *harmless: ErrorCode) -> None:
    for result in (answer, *results):
        error = ErrorCode.of(result.error_code)
        if error and error not in harmless:
            raise RequestFailed(error, getattr(result, "error_message", None) or "")


def _views(broker: BrokerProcesses, topic: str | None) -> list[list[PartitionInfo]]:
    """What each node that is awake says."""
    return [partitions_of(answer, topic) for answer in _answers(broker, topic)]


def _answers(broker: BrokerProcesses, topic: str | None) -> list[Any]:
    answers = []
    for node in broker.awake():
        with contextlib.suppress(OSError, EOFError):  # it may have ended a moment ago
            client = RawClient(node.port)
            with client.socket:
                answers.append(client.ask(METADATA, _METADATA_VERSION, _about(topic)))
    return answers


def _about(topic: str | None) -> MetadataRequest:
    topics = None if topic is None else [MetadataRequestTopic(name=topic)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)
