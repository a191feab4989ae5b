"""What the commands of groups ask of a cluster: members, committed offsets, and where partitions begin and end."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from barnabas.commands.connection import Cluster, ServerError, WireRequest, raise_for, retried
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE_REQUEST,
    CONSUMER_GROUP_DESCRIBE_RESPONSE,
    Assignment,
    ConsumerGroupDescribeRequest,
)

Result = TypeVar("Result")

EARLIEST, LATEST = -2, -1  # timestamps of ListOffsets


class TopicPartition(NamedTuple):
    """A partition; equal to kafka-python's."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Member(NamedTuple):
    """`target`, `epoch` and `is_upgraded`: of groups of KIP-848, else None."""

    id: str
    instance: str
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None = None
    epoch: int | None = None
    is_upgraded: bool | None = None


class Group(NamedTuple):
    """A classic group, or one of KIP-848, which has the epochs."""

    id: str
    state: str
    assignor: str
    coordinator: str
    members: tuple[Member, ...]
    epoch: int | None = None
    assignment_epoch: int | None = None


class Committed(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int | None


class Groups:
    """The groups of a cluster. ServerError and kafka-python's KafkaError are what its methods raise."""

    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        """`timeout_ms`: how long to wait for coordinators and leaders that are not there yet."""
        self.cluster = cluster
        self._timeout_ms = timeout_ms

    def retried(self, call: Callable[[], Result]) -> Result:
        """As `connection.retried`, within the timeout."""
        return retried(call, self._timeout_ms)

    def listed(self) -> list[dict[str, str]]:
        """All consumer groups: group_id, group_state and group_type, the latter two from recent brokers."""
        found = self.retried(self.cluster.admin.list_groups)
        groups = [
            {"group_state": "Unknown", "group_type": "Unknown", **group}
            for group in found
            if group["protocol_type"] in ("", "consumer")
            and (group.get("group_type") or "classic").lower() in ("classic", "consumer")
        ]
        return sorted(groups, key=lambda group: str(group["group_id"]))

    def described(self, group: str) -> Group:
        """ServerError, GROUP_ID_NOT_FOUND among them."""
        return self.retried(lambda: self._described(group))

    def _described(self, group: str) -> Group:
        from kafka.errors import IncompatibleBrokerVersion

        coordinator = self.cluster.coordinator(group)
        message = ConsumerGroupDescribeRequest(group_ids=[group])
        request = WireRequest(CONSUMER_GROUP_DESCRIBE_REQUEST, CONSUMER_GROUP_DESCRIBE_RESPONSE, message)
        not_found = None
        try:
            (found,) = self.cluster.ask(request, coordinator).groups
        except IncompatibleBrokerVersion:  # before Kafka 3.7
            return self._classic(group, coordinator, None)
        if found.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            not_found = found.error_message  # it says more than that of the other API
            return self._classic(group, coordinator, not_found)
        raise_for(found.error_code, found.error_message)
        return Group(
            group,
            found.group_state,
            found.assignor_name,
            self._address(coordinator),
            tuple(
                Member(
                    member.member_id,
                    member.instance_id or "",
                    member.client_id,
                    member.client_host,
                    _partitions(member.assignment),
                    _partitions(member.target_assignment),
                    member.member_epoch,
                    None if member.member_type < 0 else member.member_type == 1,
                )
                for member in found.members
            ),
            found.group_epoch,
            found.assignment_epoch,
        )

    def _classic(self, group: str, coordinator: int, not_found: str | None) -> Group:
        from kafka.protocol.admin import DescribeGroupsRequest

        (found,) = self.cluster.ask(DescribeGroupsRequest(groups=[group]), coordinator).groups
        if found.error_code:
            text = getattr(found, "error_message", None)
            raise ServerError(
                found.error_code,
                (not_found or text) if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND else text,
            )
        if found.protocol_type not in ("", "consumer"):
            raise ServerError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"GroupId {group} is not a consumer group ({found.protocol_type}).",
            )
        members = (
            Member(
                member.member_id,
                member.group_instance_id or "",
                member.client_id,
                member.client_host,
                _assigned(member.member_assignment),
            )
            for member in found.members
        )
        return Group(
            group, found.group_state, found.protocol_data, self._address(coordinator), tuple(members)
        )

    def _address(self, node: int) -> str:
        """`host:port  (id)`, as Kafka's tool shows it."""
        (broker,) = (
            broker
            for broker in self.cluster.admin.describe_cluster()["brokers"]
            if broker["broker_id"] == node
        )
        return f"{broker['host']}:{broker['port']}  ({node})"

    def committed(self, group: str) -> dict[TopicPartition, Committed]:
        """The committed offsets of a group."""

        def ask() -> Mapping[str, Mapping[Any, Any]]:
            self.cluster.coordinator(group)
            found: Mapping[str, Mapping[Any, Any]] = self.cluster.admin.list_group_offsets(group)
            return found

        return {
            TopicPartition(*partition): Committed(
                at.offset, None if at.leader_epoch is None or at.leader_epoch < 0 else at.leader_epoch
            )
            for partition, at in self.retried(ask)[group].items()
            if at.offset >= 0
        }

    def leaders(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """The leader of each partition of topics, -1 for none. ServerError for a topic that does not exist."""
        found: dict[TopicPartition, int] = {}
        names = sorted({*topics})
        for topic in self.cluster.topics(names) if names else ():
            if topic["error_code"] != ErrorCode.LEADER_NOT_AVAILABLE:
                raise_for(topic["error_code"])
            for partition in topic["partitions"]:
                found[TopicPartition(topic["name"], partition["partition_index"])] = partition["leader_id"]
        return found

    def offsets(self, partitions: Collection[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        """The offsets of a timestamp, EARLIEST or LATEST; -1 for a time after the last record."""
        from kafka import TopicPartition as KafkaPartition

        if not partitions:
            return {}
        asked = {KafkaPartition(*partition): timestamp for partition in partitions}
        found = self.retried(lambda: self.cluster.admin.list_partition_offsets(asked))
        return {TopicPartition(*partition): at.offset for partition, at in found.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets of a group without members. ServerError."""
        from kafka import TopicPartition as KafkaPartition
        from kafka.structs import OffsetAndMetadata

        wanted = {
            KafkaPartition(*partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }

        def ask() -> None:
            self.cluster.coordinator(group)
            for error in self.cluster.admin.alter_group_offsets(group, wanted).values():
                raise_for(error.errno)

        self.retried(ask)

    def delete(self, group: str) -> None:
        """ServerError."""
        from kafka.protocol.admin import DeleteGroupsRequest

        def ask() -> None:
            response = self.cluster.ask_coordinator(DeleteGroupsRequest(groups_names=[group]), group)
            for result in response.results:
                raise_for(result.error_code)

        self.retried(ask)

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The error code of each partition. ServerError for the group."""
        from kafka import TopicPartition as KafkaPartition

        def ask() -> Mapping[Any, Any]:
            self.cluster.coordinator(group)
            wanted = [KafkaPartition(*partition) for partition in partitions]
            found: Mapping[Any, Any] = self.cluster.admin.delete_group_offsets(group, wanted)
            return found

        return {TopicPartition(*each): error.errno for each, error in self.retried(ask).items()}


def _partitions(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


def _assigned(data: bytes | None) -> tuple[TopicPartition, ...]:
    """Of a member of a classic group, as the client that leads it has written it."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

    if not data:
        return ()
    try:
        assignment = ConsumerProtocolAssignment.decode(data)
    except (struct.error, ValueError):
        return ()
    return tuple(
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    )
