"""Partitions of a cluster that is reached over its ports: their leaders, and how to move them, with Kafka's requests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.contents import UnknownTopic
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.external.remote_kafka import METADATA, check_results
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
    from collections.abc import Callable, Sequence

    from barnabas.testing.external.node_process import ProcessNode

_ALTER_PARTITION_REASSIGNMENTS: Final = (45, 0)
_ELECT_LEADERS: Final = (43, 2)
_PREFERRED: Final = 0  # of ElectionType
_WAIT_SECONDS_MAX: Final = 60.0


class RemotePartitions:
    """`ask(key, version, request)` returns a node's answer, of any that is awake; `awake` the nodes that are; `wait(is_so, why_not, seconds)`
    waits, or raises TimeoutError."""

    def __init__(
        self,
        ask: Callable[[int, int, Any], Any],
        awake: Callable[[], Sequence[ProcessNode]],
        wait: Callable[[Callable[[], bool], str, float], None],
    ) -> None:
        self._ask = ask
        self._awake = awake
        self._wait = wait

    def info(self, topic: str, index: int) -> PartitionInfo:
        """UnknownTopic."""
        for each in partitions_of(self._ask(*METADATA, _about(topic)), topic):
            if each.partition == index:
                return each
        raise UnknownTopic(f"there is no partition {index} of {topic!r}")

    def wait_until_led(self, topic: str) -> None:
        """By nodes that are awake, as far as all of these know. UnknownTopic, TimeoutError."""

        def is_led() -> bool:
            awake = {node.node_id for node in self._awake()}
            return all(each.leader in awake for view in self._views(topic) for each in view)

        self._wait(is_led, f"{topic} is not led by nodes that run", _WAIT_SECONDS_MAX)

    def wait_until_in_sync(self, topic: str | None) -> None:
        """All replicas of a topic, or of all. TimeoutError, UnknownTopic."""

        def are_in_sync() -> bool:
            awake = {node.node_id for node in self._awake()}
            return all(
                each.leader in awake and len(each.isr) == len(each.replicas)
                for view in self._views(topic)
                for each in view
            )

        self._wait(are_in_sync, f"not all replicas of {topic or 'all topics'} are in sync", _WAIT_SECONDS_MAX)

    def move_leader(self, topic: str, index: int, node_id: int | None) -> None:
        """ValueError, UnknownTopic, RequestFailed, TimeoutError."""
        now = self.info(topic, index)
        node_id = now.successor(node_id, [node.node_id for node in self._awake()])
        if node_id == now.leader:
            return
        self._prefer(topic, index, [node_id, *(each for each in now.replicas if each != node_id)])
        self._elect(topic, index)

        def leads() -> bool:
            views = self._views(topic)
            return all(each.leader == node_id for view in views for each in view if each.partition == index)

        self._wait(leads, f"node {node_id} does not lead {topic}-{index}", _WAIT_SECONDS_MAX)

    def _prefer(self, topic: str, index: int, replicas: list[int]) -> None:
        partition = ReassignablePartition(partition_index=index, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=[partition])]
        )
        answer = self._ask(*_ALTER_PARTITION_REASSIGNMENTS, request)
        check_results([answer, *(each for one in answer.responses for each in one.partitions)])

        def is_so() -> bool:
            return self.info(topic, index).replicas == tuple(replicas)

        self._wait(is_so, f"{topic}-{index} keeps its replicas as they were", _WAIT_SECONDS_MAX)

    def _elect(self, topic: str, index: int) -> None:
        request = ElectLeadersRequest(
            election_type=_PREFERRED,
            topic_partitions=[TopicPartitions(topic=topic, partitions=[index])],
        )
        answer = self._ask(*_ELECT_LEADERS, request)
        results = [each for one in answer.replica_election_results for each in one.partition_result]
        check_results([answer, *results], ErrorCode.ELECTION_NOT_NEEDED)

    def _views(self, topic: str | None) -> list[list[PartitionInfo]]:
        """What each node that is awake answers."""
        views = []
        for node in self._awake():
            with contextlib.suppress(OSError, EOFError):  # it may have ended a moment ago
                client = RawClient(node.port)
                with client.socket:
                    answer = client.ask(*METADATA, _about(topic))
                views.append(partitions_of(answer, topic))
        return views


def partitions_of(answer: Any, topic: str | None) -> list[PartitionInfo]:
    """The partitions in a Metadata answer about a topic, or about all. UnknownTopic."""
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


def _about(topic: str | None) -> MetadataRequest:
    topics = None if topic is None else [MetadataRequestTopic(name=topic)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)
